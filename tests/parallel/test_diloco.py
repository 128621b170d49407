"""Two workers on two ranks: held to DDP, stopped and resumed, their messages counted."""

import json
from pathlib import Path

import pytest
import torch

from lmtrain.accounting.options.outer_settings import DELTA_BYTES, DeltaFormat
from lmtrain.models.llama import Llama
from lmtrain.parallel.diloco import diloco_facts
from lmtrain.parallel.outer_step import OuterStep, fragments_of, mean_over_ranks
from lmtrain.parallel.replicate import ddp_facts
from lmtrain.training.checkpointing.weights import load_weights
from tests import tiny
from tests.parallel.sent import Sent
from tests.parallel.strategy_parity import RELATIVE, Found, require_same_end, trained
from tests.ranks import on_ranks

EVERY_STEPS, STEPS, SAVED = 4, 8, 3
PLAIN = {"model": "llama", "loss": "plain", "optimizer": "sgd", "clips": False, "packs": False, "steps": 4}
AVERAGING = {"every_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
STREAMING = {"every_steps": EVERY_STEPS, "num_fragments": 2, "outer_lr": 0.7, "outer_momentum": 0.9, "delta": "bf16"}
WORKERS = {
    "model": "llama",
    "loss": "chunked",
    "optimizer": "muon_alone",
    "strategy": "diloco",
    "settings": STREAMING,
    "steps": STEPS,
    "notes_messages": True,
}
RARE = WORKERS | {"settings": STREAMING | {"num_fragments": 1, "delta": "fp32"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoint."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Found]:
    """Every training, one after another on the same two ranks."""
    cases = {
        "ddp": PLAIN | {"strategy": "ddp"},
        "averaging": PLAIN | {"strategy": "diloco", "settings": AVERAGING},
        "whole": WORKERS | {"save_to": "saved", "save_at": SAVED},
        "resumed": WORKERS | {"resume": "saved"},
        "under_ddp": WORKERS | {"strategy": "ddp", "settings": {}, "resume": "saved"},
        "rare": RARE,
    }
    return dict(zip(cases, trained(folder, [*cases.values()], num_ranks=2), strict=True))


@pytest.mark.distributed
def test_a_meeting_at_every_step_that_takes_the_mean_is_ddp_for_plain_sgd(found: dict[str, Found]) -> None:
    require_same_end(found["averaging"], found["ddp"])
    for kind in ("losses", "tokens"):
        assert found["averaging"][kind] == pytest.approx(found["ddp"][kind], rel=RELATIVE), kind


@pytest.mark.distributed
def test_a_resumed_run_equals_the_one_that_never_stopped_bit_for_bit(found: dict[str, Found]) -> None:
    """The step was between two meetings: weights, moments and outer momentum of both workers decide what follows."""
    whole, resumed = found["whole"], found["resumed"]
    assert resumed["losses"] == {step: whole["losses"][step] for step in range(SAVED + 1, STEPS + 1)}
    assert resumed["norms"] == {step: whole["norms"][step] for step in range(SAVED + 1, STEPS + 1)}
    for name, weight in whole["weights"].items():
        assert torch.equal(weight, resumed["weights"][name]), name
    assert resumed["outer_bytes"] == whole["outer_bytes"], "both count from the run's first step"


@pytest.mark.distributed
def test_a_checkpoint_holds_the_global_weights_for_whoever_reads_it(folder: Path, found: dict[str, Found]) -> None:
    """At step 3 one fragment has met, at step 2; the other one's global weights are those of the start."""
    shape = {"width": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "feed_forward_width": 24}
    model, start = (Llama(**shape, vocab_size=301, max_context_tokens=16) for _ in range(2))
    start.initialize_weights(torch.Generator().manual_seed(7))
    load_weights(model, folder / "saved")
    has_met = [not torch.equal(old, new) for old, new in zip(start.parameters(), model.parameters(), strict=True)]
    assert any(has_met)
    assert not all(has_met)
    assert found["under_ddp"]["losses"].keys() == set(range(SAVED + 1, STEPS + 1))


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "settings", "most_filling"), [("whole", STREAMING, 2 * 2), ("rare", RARE["settings"], 0)]
)
def test_only_meetings_send_deltas_and_as_many_bytes_as_planned(found, name, settings, most_filling) -> None:
    sent = [sum(message.sent for message in messages) for messages in found[name]["sent"]]
    period = EVERY_STEPS // settings["num_fragments"]
    assert [step for step, num_bytes in enumerate(sent, start=1) if num_bytes] == [*range(period, STEPS + 1, period)]
    assert sum(sent) == pytest.approx(found[name]["outer_bytes"], rel=1e-12)
    num = sum(weight.numel() for weight in found[name]["weights"].values())
    (planned,) = diloco_facts(**settings).collectives(num_ranks=2, gathered=0, num_gradients=num, micro_steps=1)
    beyond = sum(sent[1 : 1 + EVERY_STEPS]) - planned.num_bytes * planned.every_steps  # steps 2 to 5
    assert 0 <= beyond <= most_filling * DELTA_BYTES[settings["delta"]], "slices of each rank are filled up"
    (of_ddp,) = ddp_facts().collectives(num_ranks=2, gathered=0, num_gradients=num, micro_steps=1)
    assert of_ddp.num_bytes / planned.num_bytes == EVERY_STEPS * 4 / DELTA_BYTES[settings["delta"]]


@pytest.mark.distributed
def test_a_command_trains_workers_and_scores_the_global_weights(tmp_path: Path) -> None:
    words = [
        "strategy=diloco",
        "strategy.every_steps=100",
        "trainer.devices=2",
        "run.name=apart",
        "run.log_every_steps=2",
    ]
    words += ["callbacks.validation.every_steps=2", "callbacks.validation.num_passes=null"]
    words += ["callbacks.checkpoint.background_from_bytes=0", "callbacks.checkpoint.every_steps=2"]
    ended = tiny.train(tmp_path, *words, "budget.steps=4", num_ranks=2)
    assert ended.returncode == 0, ended.stderr[-3000:]
    run = tmp_path / "runs" / "apart"
    points = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scored = {point["step"]: one for point in points if (one := point["metrics"].get("validation/loss"))}
    assert scored[2] == scored[0], "between meetings the global weights stand still"
    assert scored[4] != scored[0], "the last step lets workers meet"
    sent = [one for point in points if (one := point["metrics"].get("communication/sent_bytes")) is not None]
    num = json.loads((run / "plan.json").read_text())["parameters"]["total"]
    assert sent == [0, 4 * num], "a meeting in fp32"
    assert sorted(tiny.losses(run)) == [*range(1, 5)]
    assert (run / "checkpoints" / "step_00000004" / "worker_00001.pt").is_file()


ROUNDS = 3


def model() -> Llama:
    built = Llama(width=16, num_layers=4, num_heads=2, feed_forward_width=32, vocab_size=67, max_context_tokens=16)
    built.initialize_weights(torch.Generator().manual_seed(0))
    return built


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def train_apart(weights, *, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    with torch.no_grad():
        for weight in weights:
            weight += torch.randn(weight.shape, generator=generator)


def mean_of_ranks(values: torch.Tensor) -> torch.Tensor:
    both = [torch.empty_like(values) for _ in range(2)]
    torch.distributed.all_gather(both, values)
    return torch.stack(both).mean(0)


def _rank(rank: int) -> None:
    for lr, momentum in ((1.0, 0.0), (0.7, 0.9)):
        ours = model()
        weights = list(ours.parameters())
        start = flat(weights)
        outer = OuterStep(every_steps=2, num_fragments=1, lr=lr, momentum=momentum, delta="fp32")
        outer.start(ours)
        velocity = torch.zeros_like(start)
        for step in range(2 * ROUNDS):
            train_apart(weights, rank=rank, step=step)
            own = flat(weights)
            mean = mean_of_ranks(own)
            outer.after(step)
            if step % 2 == 0:
                assert torch.equal(flat(weights), own), "no meeting in the middle of a round"
                continue
            delta = start - mean
            velocity = momentum * velocity + delta  # Sutskever et al. 2013, as in torch.optim.SGD
            start = start - lr * (delta + momentum * velocity)
            torch.testing.assert_close(flat(weights), start, rtol=1e-5, atol=1e-5)
            if momentum == 0:
                torch.testing.assert_close(flat(weights), mean, rtol=1e-6, atol=1e-6)
    _meet_in_turns(rank)


def _meet_in_turns(rank: int) -> None:
    ours = model()
    outer = OuterStep(every_steps=6, num_fragments=3, lr=1.0, momentum=0.0, delta="bf16")
    outer.start(ours)
    fragments = fragments_of(ours, num_fragments=3)
    met: list[list[int]] = []
    for step in range(12):
        train_apart(ours.parameters(), rank=rank, step=step)
        before = [flat(fragment) for fragment in fragments]
        outer.after(step)
        met.append([i for i, old in enumerate(before) if not torch.equal(old, flat(fragments[i]))])
    assert met == [[], [2], [], [1], [], [0]] * 2, "each once in six steps"
    outer.after(12, is_last=True)
    for fragment in fragments:
        values = flat(fragment)
        assert torch.equal(values, mean_of_ranks(values)), "all are the same after the last step"


@pytest.mark.distributed
def test_workers_meet_by_nesterov_on_their_mean_delta_fragment_by_fragment(tmp_path: Path) -> None:
    on_ranks(_rank, folder=tmp_path)


def test_evaluation_sees_the_global_weights_and_training_goes_on_with_the_own_ones():
    ours = model()
    outer = OuterStep(every_steps=2, num_fragments=1, lr=0.7, momentum=0.9, delta="fp32")
    outer.start(ours)
    at_start = flat(ours.parameters())
    train_apart(ours.parameters(), rank=0, step=0)
    trained = flat(ours.parameters())
    for _ in range(2):  # a second time changes nothing
        outer.eval()
        assert torch.equal(flat(ours.parameters()), at_start)
    first = next(iter(ours.parameters()))
    assert torch.equal(outer.global_of(first), first)
    for _ in range(2):
        outer.train()
        assert torch.equal(flat(ours.parameters()), trained)


NUM_WORKERS_SAVED = 3


FORMATS: tuple[DeltaFormat, ...] = ("fp32", "bf16")


def values(rank: int, num_values: int) -> torch.Tensor:
    return torch.randn(num_values, generator=torch.Generator().manual_seed(rank)) * 10.0 ** (rank - 3)


def _rank_deltas(rank: int) -> None:
    num_values = 1_001  # no multiple of the ranks
    exact = torch.stack([values(0, num_values), values(1, num_values)]).mean(0)
    for delta in FORMATS:
        with Sent() as sent:
            mean, sent_bytes = mean_over_ranks(values(rank, num_values), delta)
        assert sum(message.sent for message in sent.take()) == sent_bytes
        assert sent_bytes == pytest.approx(DELTA_BYTES[delta] * num_values, rel=0.001)  # one value fills the last slice
        step = {"fp32": 1e-6, "bf16": 2**-8}[delta]
        assert (mean - exact).abs().max() <= step * exact.abs().max()  # rounded twice, by half a step each
        both = [torch.empty_like(mean), torch.empty_like(mean)]
        torch.distributed.all_gather(both, mean)
        assert torch.equal(*both), "every rank goes on from the same mean"


@pytest.mark.distributed
def test_the_mean_over_ranks_is_rounded_alike_and_its_bytes_are_counted(tmp_path: Path) -> None:
    on_ranks(_rank_deltas, folder=tmp_path)
