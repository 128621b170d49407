"""Two processes over gloo, started twice: one job that ends well, one whose second rank is killed in a save."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lmtrain.data.synthetic import synthetic
from lmtrain.parallel.mesh import mesh_facts
from lmtrain.parallel.replicate import ddp, ddp_facts
from lmtrain.storage.hashed_folder import damage
from lmtrain.training.checkpointing.checkpoints import newest_whole
from lmtrain.training.checkpointing.weights import load_weights
from tests import forked, tiny
from tests.parallel.sharded_run import MICRO_STEPS, NUM_LAYERS, WHOLE_WEIGHTS, build_model
from tests.parallel.strategy_parity import (
    CLIP,
    CRASHES,
    RELATIVE,
    TRAIL,
    Found,
    along_the_trail,
    losses_along,
    require_same,
    require_same_end,
    trained,
)
from tests.ranks import on_ranks

SCRIPT = Path(__file__).with_name("sharded_run.py")


def run(scenario, folder):
    data = synthetic(root=str(folder), vocab_size=257, num_tokens=4000)
    words = [scenario, str(folder), str(data)]
    return forked.run(SCRIPT, words, folder=folder, environment=tiny.environment(), num_ranks=2)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return the folder of a job that ended well and what each rank noted; after a crash of gloo, of a second one."""
    folder = tmp_path_factory.mktemp("job")
    finished = run("round_trip", folder)
    if finished.returncode in CRASHES:
        folder = tmp_path_factory.mktemp("second")
        finished = run("round_trip", folder)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.distributed
@pytest.mark.slow
def test_going_on_from_a_sharded_checkpoint_gives_the_same_losses_and_weights_to_the_last_bit(job):
    for notes in job[1]:
        assert list(notes["straight_losses"]) == ["1", "2", "3", "4"]
        assert notes["resumed_losses"] == {step: notes["straight_losses"][step] for step in ("3", "4")}
        assert notes["resumed_parameters"] == notes["straight_parameters"]
    assert job[1][0]["straight_losses"] == job[1][1]["straight_losses"]
    assert job[1][0]["straight_parameters"] != job[1][1]["straight_parameters"], "each rank holds slices of its own"


@pytest.mark.distributed
@pytest.mark.slow
def test_shards_that_other_processes_wrote_are_the_same_checkpoint(job):
    folder, ranks = job
    in_place, behind = (folder / name / "step_00000002" for name in ("checkpoints", "behind"))
    names = [sorted(str(path.relative_to(step)) for path in step.rglob("*")) for step in (in_place, behind)]
    assert names[0] == names[1]
    assert damage(behind) is None
    for notes in ranks:
        assert notes["behind_losses"] == notes["resumed_losses"]
        assert notes["behind_parameters"] == notes["straight_parameters"]
        assert notes["behind"][0] is None
    assert ranks[0]["behind"][1] > ranks[1]["behind"][1] > 0


@pytest.mark.distributed
@pytest.mark.slow
def test_a_full_disk_of_one_rank_s_other_process_is_told_by_both_and_leaves_no_checkpoint(job):
    folder, ranks = job
    assert "rank 1: " in ranks[0]["behind_full"][0]
    assert all("File too large" in notes["behind_full"][0] for notes in ranks)
    assert list((folder / "behind_full").glob("step_*")) == []


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raw", "ema"])
def test_one_process_reads_the_weights_and_their_average_that_two_ranks_saved(job, kind):
    whole, model = torch.load(job[0] / WHOLE_WEIGHTS)[kind], build_model()
    load_weights(model, job[0] / "checkpoints" / "step_00000002", kind)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, whole[name]), name


@pytest.mark.distributed
@pytest.mark.slow
def test_ranks_skip_the_same_steps_and_compute_with_the_average_where_asked(job):
    for notes in job[1]:
        assert notes["straight_skipped"] == notes["resumed_skipped"]
        assert notes["average_swaps"]


@pytest.mark.distributed
@pytest.mark.slow
def test_gradients_are_reduced_once_a_step_however_many_micro_steps_or_at_each_where_asked(job):
    num_groups = NUM_LAYERS + 1  # each block, and the rest of the model
    for notes in job[1]:
        assert notes["num_reductions"] == 4 * num_groups
        assert notes["num_reductions_of_each_micro_step"] == MICRO_STEPS * num_groups
        assert notes["often_losses"] == {"1": notes["straight_losses"]["1"]}
        assert notes["has_gradients"] == [step == MICRO_STEPS - 1 for step in range(MICRO_STEPS)] * 4


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.faults
def test_a_full_disk_on_one_rank_is_refused_by_both_and_training_goes_on(job):
    folder, ranks = job
    for notes in ranks:
        assert "step_00000003 could not be written: rank 1: " in notes["refusal"]
        assert "File too large" in notes["refusal"]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_00000002"]


@pytest.mark.distributed
@pytest.mark.slow
def test_ranks_do_not_go_on_from_a_checkpoint_that_would_run_a_command(job):
    folder, ranks = job
    for notes in ranks:
        in_metadata, in_a_value = notes["hostile_refusals"]
        assert "cannot be read safely: it names torch.distributed.checkpoint.filesystem.torch.ctypes" in in_metadata
        assert "holds more than tensors and plain values: it names commands.call" in in_a_value
    assert not (folder / "witness").exists()


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.faults
def test_a_rank_killed_in_the_middle_of_its_shard_leaves_the_older_checkpoint(tmp_path):
    finished = run("killed", tmp_path)
    assert finished.returncode == -signal.SIGXFSZ, finished.stderr[-3000:]
    facts, passed_over = newest_whole(tmp_path / "checkpoints")
    assert facts is not None
    assert (facts.step, passed_over) == (1, [])
    assert (tmp_path / "checkpoints" / ".step_00000002.tmp").is_dir(), "the fault came before or after the save"


HSDP_MICRO_STEPS = 2
HYBRID = {"strategy": "hsdp", "settings": {"shard_size": 2}, "notes_messages": True}
PLAIN = {"model": "llama", "optimizer": "muon", "loss": "plain"}
CHUNKED = {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """Both trainings in one process, a whole step at once."""
    folder = tmp_path_factory.mktemp("alone")
    return trained(folder, [{"strategy": "single", "micro_batch_sequences": 8} | case for case in (PLAIN, CHUNKED)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def together(folder: Path) -> list[Found]:
    """Both on four ranks, with two micro-steps a step, the second with a scatter at each of them.

    Then the first again, from its first step on, by FSDP.
    """
    often = {"settings": {"shard_size": 2, "reduce_every_micro_step": True}}
    cases = [HYBRID | PLAIN | {"save_to": "hybrid"}, HYBRID | often | CHUNKED]
    again = PLAIN | {"strategy": "fsdp", "resume": "hybrid", "steps": 2, "save_to": "sharded", "save_at": 2}
    return trained(folder, [*cases, again], num_ranks=4)


@pytest.mark.distributed
@pytest.mark.parametrize("case", [0, 1])
def test_losses_gradients_and_weights_are_those_of_one_process(
    together: list[Found], alone: list[Found], case: int
) -> None:
    require_same(together[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_gradients_are_scattered_at_each_micro_step_where_asked_and_copies_averaged_once(
    together: list[Found],
) -> None:
    for messages in together[1]["sent"][1:]:
        kinds = [each.kind for each in messages if each.num_ranks == 2 and each.num_bytes > 4]
        assert (kinds.count("scatter"), kinds.count("reduce")) == (3 * HSDP_MICRO_STEPS, 3)


@pytest.mark.distributed
def test_a_step_sends_what_its_facts_say_by_group(together: list[Found]) -> None:
    """Two blocks and the rest, which stays gathered for the backward pass; FSDP pads a row of 301 for two shards.

    The norm's one number is left out.
    """
    sizes = {name: weight.numel() for name, weight in together[0]["weights"].items()}
    in_blocks = sum(size for name, size in sizes.items() if name.startswith("layers."))
    spread, num = mesh_facts(option="hsdp", shard_size=2), sum(sizes.values())
    step = {"num_ranks": 4, "gathered": 4 * num, "num_gradients": num, "micro_steps": HSDP_MICRO_STEPS}
    shards, copies = spread.collectives(**step)
    for messages in together[0]["sent"][1:]:  # the first one also gathers gradients to compare
        sent = {
            kind: [each.sent for each in messages if (each.kind, each.num_ranks) == (kind, 2) and each.num_bytes > 4]
            for kind in ("gather", "scatter", "reduce")
        }
        assert [len(sent[kind]) for kind in ("scatter", "reduce")] == [3, 3], "one reduction a step"
        assert sum(sent["scatter"]) == pytest.approx(shards.reduced_bytes, rel=0.01)
        assert sum(sent["reduce"]) == pytest.approx(copies.reduced_bytes, rel=0.01)
        second_of_the_rest = HSDP_MICRO_STEPS * 4 * (num - in_blocks) / 2
        of_muon = sent["gather"][-1]
        assert sum(sent["gather"]) - of_muon == pytest.approx(shards.gathered_bytes - second_of_the_rest, rel=0.01)


@pytest.mark.distributed
def test_a_checkpoint_goes_on_in_other_layouts_and_back(
    folder: Path, together: list[Found], alone: list[Found]
) -> None:
    assert together[2]["losses"] == pytest.approx({2: alone[0]["losses"][2]}, rel=RELATIVE)
    one = {"strategy": "single", "resume": "sharded", "steps": 3, "save_to": "whole", "save_at": 2}
    (plain,) = trained(folder, [PLAIN | one | {"micro_batch_sequences": 2}])
    require_same_end(plain, alone[0])


@pytest.mark.distributed
def test_gradients_sent_in_bf16_are_half_the_bytes_and_rounded_on_a_cpu_too(tmp_path):
    """In processes of their own: the end of DDP's group may wait for a thread that waits for Python (torch 2.13)."""
    assert (ddp_facts(gradients_in="bf16").gradient_bytes, ddp_facts().gradient_bytes) == (2, 4)
    on_ranks(_rounds_gradients, folder=tmp_path)


def _rounds_gradients(rank):
    del rank
    strategy = ddp(num_ranks=2, gradients_in="bf16").strategy
    strategy.parallel_devices = [torch.device("cpu")]
    strategy.cluster_environment = SimpleNamespace(local_rank=lambda: 0)  # of a list of one device
    model = strategy._setup_model(torch.nn.Linear(5, 1, bias=False))
    model(torch.full((1, 5), 1 / 3)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert torch.equal(gradients[0], torch.full((1, 5), 1 / 3).bfloat16().float())


# Muon's products in bf16 amplify the last bits of gradients, which depend on the order of sums: one process with other
# last bits has losses up to 2e-6 apart over these steps, and so may a run through the strategies.
OF_LAST_BITS = 1e-5
# In fp32 the losses agree; weights of one process end 2.3e-6 to 7.4e-6 apart with other last bits of gradients (six
# seeds), 8.6e-6 with smaller micro-batches. A lost moment would be a thousand times that.
OF_LAST_WEIGHTS = 2e-5


@pytest.mark.slow
@pytest.mark.distributed
def test_one_run_goes_on_through_every_strategy_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Muon keeps a momentum of matrices and AdamW's moments of the rest: both states cross every layout."""
    cases = [{"model": "llama", "optimizer": one, "loss": "plain"} for one in ("muon", "muon_bf16")]
    straight = [{**one, "strategy": "single", "micro_batch_sequences": 8, "steps": len(TRAIL)} for one in cases]
    expected, in_bf16, shaken = trained(tmp_path, [*straight, {**straight[1], "last_bits": 1}])
    legs, legs_in_bf16 = along_the_trail(tmp_path, cases)
    assert losses_along(legs) == pytest.approx(expected["losses"], rel=RELATIVE)
    require_same_end(legs[-1], expected, atol=OF_LAST_WEIGHTS)
    for losses in (shaken["losses"], losses_along(legs_in_bf16)):
        assert losses == pytest.approx(in_bf16["losses"], rel=OF_LAST_BITS)
        assert losses != pytest.approx(in_bf16["losses"], rel=RELATIVE / 10), "the products amplify them"
