"""Two workers on two ranks: held to DDP, stopped and resumed, their messages counted."""

import json
from pathlib import Path

import pytest
import torch

from lmtrain.accounting.options.outer_settings import BLOCK_VALUES, delta_bytes
from lmtrain.errors import ConfigurationError
from lmtrain.models.llama import Llama
from lmtrain.parallel.diloco import diloco, diloco_facts
from lmtrain.parallel.replicate import ddp_facts
from lmtrain.training.checkpointing.weights import load_weights
from tests import tiny
from tests.parallel.strategy_parity import RELATIVE, Found, require_same_end, trained

EVERY_STEPS, STEPS, SAVED = 4, 8, 3
PLAIN = {"model": "llama", "loss": "plain", "optimizer": "sgd", "clips": False, "packs": False, "steps": 4}
AVERAGING = {"every_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
STREAMING = {"every_steps": EVERY_STEPS, "num_fragments": 2, "outer_lr": 0.7, "outer_momentum": 0.9, "delta": "int8"}
WORKERS = {
    "model": "llama",
    "loss": "chunked",
    "optimizer": "muon_alone",
    "strategy": "diloco",
    "settings": STREAMING,
    "steps": STEPS,
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
    ("name", "settings", "most_filling"), [("whole", STREAMING, 2 * 2 * BLOCK_VALUES), ("rare", RARE["settings"], 0)]
)
def test_only_meetings_send_deltas_and_as_many_bytes_as_planned(found, name, settings, most_filling) -> None:
    sent = [sum(message.sent for message in messages) for messages in found[name]["sent"]]
    period = EVERY_STEPS // settings["num_fragments"]
    assert [step for step, num_bytes in enumerate(sent, start=1) if num_bytes] == [*range(period, STEPS + 1, period)]
    assert sum(sent) == pytest.approx(found[name]["outer_bytes"], rel=1e-12)
    num = sum(weight.numel() for weight in found[name]["weights"].values())
    (planned,) = diloco_facts(**settings).collectives(num_ranks=2, gathered=0, num_gradients=num, micro_steps=1)
    beyond = sum(sent[1 : 1 + EVERY_STEPS]) - planned.num_bytes * planned.every_steps  # steps 2 to 5
    assert 0 <= beyond <= most_filling * delta_bytes(settings["delta"]), "blocks of each rank are filled up"
    (of_ddp,) = ddp_facts().collectives(num_ranks=2, gathered=0, num_gradients=num, micro_steps=1)
    assert of_ddp.num_bytes / planned.num_bytes == EVERY_STEPS * 4 / delta_bytes(settings["delta"])


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


def test_a_plan_counts_global_weights_and_outer_momentum() -> None:
    facts = diloco_facts(every_steps=10, outer_momentum=0.9)
    assert (facts.kept_bytes, facts.replicates, facts.num_shards(8)) == (8, False, 1)


@pytest.mark.parametrize(
    ("num_ranks", "settings", "words"),
    [
        (1, {}, "trainer.devices x trainer.num_nodes=1 is below 2, the fewest ranks of the strategy; nearest valid: "),
        (2, {"every_steps": 10, "num_fragments": 4}, "num_fragments=4, which meet in turns; nearest valid: .*=8"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_nearest_that_can(num_ranks, settings, words) -> None:
    with pytest.raises(ConfigurationError, match=words):
        diloco(num_ranks=num_ranks, **{"every_steps": 100, **settings})
