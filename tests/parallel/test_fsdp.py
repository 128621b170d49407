"""Two processes over gloo, started twice: one job that ends well, one whose second rank is killed in a save."""

import json
import signal
from pathlib import Path

import pytest
import torch

from lmtrain.data.synthetic import synthetic
from lmtrain.storage.hashed_folder import damage
from lmtrain.training.checkpointing.checkpoints import newest_whole
from lmtrain.training.checkpointing.weights import load_weights
from tests import forked, tiny
from tests.parallel.sharded_run import MICRO_STEPS, NUM_LAYERS, WHOLE_WEIGHTS, build_model

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("sharded_run.py")


def run(scenario, folder):
    data = synthetic(root=str(folder), vocab_size=257, num_tokens=4000)
    words = [scenario, str(folder), str(data)]
    return forked.run(SCRIPT, words, folder=folder, environment=tiny.environment(), num_ranks=2)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return the folder of a job that ended well and what each of its ranks noted."""
    folder = tmp_path_factory.mktemp("job")
    finished = run("round_trip", folder)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_going_on_from_a_sharded_checkpoint_gives_the_same_losses_and_weights_to_the_last_bit(job):
    for notes in job[1]:
        assert list(notes["straight_losses"]) == ["1", "2", "3", "4"]
        assert notes["resumed_losses"] == {step: notes["straight_losses"][step] for step in ("3", "4")}
        assert notes["resumed_parameters"] == notes["straight_parameters"]
    assert job[1][0]["straight_losses"] == job[1][1]["straight_losses"]
    assert job[1][0]["straight_parameters"] != job[1][1]["straight_parameters"], "each rank holds slices of its own"


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


def test_a_full_disk_of_one_rank_s_other_process_is_told_by_both_and_leaves_no_checkpoint(job):
    folder, ranks = job
    assert "rank 1: " in ranks[0]["behind_full"][0]
    assert all("File too large" in notes["behind_full"][0] for notes in ranks)
    assert list((folder / "behind_full").glob("step_*")) == []


def test_a_sharded_checkpoint_is_whole_and_has_a_file_of_each_rank(job):
    folder = job[0] / "checkpoints" / "step_00000002"
    assert damage(folder) is None
    assert {"__0_0.distcp", "__1_0.distcp"} <= {path.name for path in (folder / "sharded").iterdir()}


@pytest.mark.parametrize("kind", ["raw", "ema"])
def test_one_process_reads_the_weights_and_their_average_that_two_ranks_saved(job, kind):
    whole, model = torch.load(job[0] / WHOLE_WEIGHTS)[kind], build_model()
    load_weights(model, job[0] / "checkpoints" / "step_00000002", kind)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, whole[name]), name


def test_ranks_skip_the_same_steps_and_compute_with_the_average_where_asked(job):
    for notes in job[1]:
        assert notes["straight_skipped"] == notes["resumed_skipped"]
        assert notes["average_swaps"]


def test_gradients_are_reduced_once_a_step_however_many_micro_steps_or_at_each_where_asked(job):
    num_groups = NUM_LAYERS + 1  # each block, and the rest of the model
    for notes in job[1]:
        assert notes["num_reductions"] == 4 * num_groups
        assert notes["num_reductions_of_each_micro_step"] == MICRO_STEPS * num_groups
        assert notes["often_losses"] == {"1": notes["straight_losses"]["1"]}
        assert notes["has_gradients"] == [step == MICRO_STEPS - 1 for step in range(MICRO_STEPS)] * 4


@pytest.mark.faults
def test_a_full_disk_on_one_rank_is_refused_by_both_and_training_goes_on(job):
    folder, ranks = job
    for notes in ranks:
        assert "step_00000003 could not be written: rank 1: " in notes["refusal"]
        assert "File too large" in notes["refusal"]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_00000002"]


def test_ranks_do_not_go_on_from_a_checkpoint_that_would_run_a_command(job):
    folder, ranks = job
    for notes in ranks:
        in_metadata, in_a_value = notes["hostile_refusals"]
        assert "cannot be read safely: it names torch.distributed.checkpoint.filesystem.torch.ctypes" in in_metadata
        assert "holds more than tensors and plain values: it names commands.call" in in_a_value
    assert not (folder / "witness").exists()


@pytest.mark.faults
def test_a_rank_killed_in_the_middle_of_its_shard_leaves_the_older_checkpoint(tmp_path):
    finished = run("killed", tmp_path)
    assert finished.returncode == -signal.SIGXFSZ, finished.stderr[-3000:]
    facts, passed_over = newest_whole(tmp_path / "checkpoints")
    assert facts is not None
    assert (facts.step, passed_over) == (1, [])
    assert (tmp_path / "checkpoints" / ".step_00000002.tmp").is_dir(), "the fault came before or after the save"
