"""kill -9 at any moment, run the same command again: the losses are those of a run that nobody touched."""

from pathlib import Path

import pytest

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.storage.hashed_folder import damage
from lmtrain.tracking.run_log import read_points
from lmtrain.training.checkpointing.checkpoints import list_checkpoints
from tests import tiny

STEPS = 24
RESUMABLE = [f"budget.steps={STEPS}", "callbacks.checkpoint.every_steps=5", "batch.micro_batch_sequences=2"]
KILL = "{_target_: tests.faults.kill_at.KillAt, step: %d, micro_step: %d, rank: %d}"
# Muon in bf16 turns the last bits of gradients, which other ranks sum in another order, into bits of bf16: 1e-4.
ACROSS = [*RESUMABLE, "optimizer.iteration_dtype=fp32"]
ACROSS_WORLD_SIZES = 2e-6  # fp32 sums in another order, grown by 24 Muon steps at their largest learning rate


def killed(step: int, micro_step: int = 0, rank: int = 0) -> list[str]:
    """Return the words that make a run kill one of its ranks once."""
    return ["--allow-target", "tests.", f"+callbacks.kill={KILL % (step, micro_step, rank)}"]


def losses_untouched(folder: Path, words: list[str]) -> dict[int, float]:
    """Return the losses of a run on one rank that was never stopped."""
    finished = tiny.train(folder, *words, "run.name=a")
    assert finished.returncode == 0, finished.stderr
    return tiny.losses(folder / "runs/a")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses_untouched(tmp_path_factory.mktemp("untouched"), RESUMABLE)


@pytest.fixture(scope="module")
def untouched_across(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses_untouched(tmp_path_factory.mktemp("untouched_across"), ACROSS)


@pytest.mark.faults
@pytest.mark.parametrize(("step", "micro_step", "workers"), [(13, 2, 0), (3, 0, 0), (17, 1, 2)])
def test_one_rank_killed_goes_on_bit_for_bit(
    step: int, micro_step: int, workers: int, untouched: dict[int, float], tmp_path: Path
) -> None:
    words = [*RESUMABLE, "run.name=a", f"data.num_workers={workers}", *killed(step, micro_step)]
    assert tiny.train(tmp_path, *words).returncode == -9
    again = tiny.train(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert tiny.losses(tmp_path / "runs/a") == untouched


@pytest.mark.faults
def test_a_run_killed_while_it_validates_goes_on_bit_for_bit(untouched: dict[int, float], tmp_path: Path) -> None:
    validating = ["callbacks.validation.num_passes=null", "callbacks.validation.every_steps=6"]
    kill = "{_target_: tests.faults.kill_at.KillInValidation, step: 12}"
    words = [*RESUMABLE, *validating, "run.name=a", "--allow-target", "tests.", f"+callbacks.kill={kill}"]
    assert tiny.train(tmp_path, *words).returncode == -9
    assert list_checkpoints(tmp_path / "runs/a/checkpoints")[-1].step == 10
    again = tiny.train(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert tiny.losses(tmp_path / "runs/a") == untouched
    scored = [point.step for point in read_points(tmp_path / "runs/a/metrics.jsonl") if BITS_PER_BYTE in point.metrics]
    assert scored == [0, 6, 12, 18, 24]


# As CUDA's runtime and torch's allocator word them; each in a step behind a checkpoint, on its way while training.
LOST = "CUDA error: unspecified launch failure; compile with TORCH_USE_CUDA_DSA to enable device-side assertions."
HELD = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is "
    "free. Process 4711 has 70.00 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch."
)
SHARED = "CUDA error: all CUDA-capable devices are busy or unavailable"
FAULTS = (
    (7, "AcceleratorError", LOST, "the same command resumes from the checkpoint of step 5"),
    (12, "OutOfMemoryError", HELD, "out of memory at batch.micro_batch_sequences=2"),
    (17, "AcceleratorError", SHARED, "the GPU or its driver failed"),
)


@pytest.mark.faults
def test_a_gpu_that_fails_in_a_step_is_one_line_and_the_run_goes_on_bit_for_bit(
    untouched: dict[int, float], tmp_path: Path
) -> None:
    words = [*RESUMABLE, "run.name=a", "callbacks.checkpoint.background_from_bytes=1"]
    for step, kind, said, told in FAULTS:
        fault = f"{{_target_: tests.faults.kill_at.FailAt, step: {step}, kind: {kind}, said: '{said}'}}"
        failed = tiny.train(tmp_path, *words, "--allow-target", "tests.", f"+callbacks.fail={fault}")
        assert failed.returncode == 3, failed.stderr
        [line] = [line for line in failed.stderr.splitlines() if line.startswith("lmtrain:")]
        assert told in line
        assert "Traceback" not in failed.stderr
        newest = list_checkpoints(tmp_path / "runs/a/checkpoints")[-1]
        assert (newest.step, damage(newest.path)) == (step - step % 5, None)
    again = tiny.train(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert tiny.losses(tmp_path / "runs/a") == untouched


@pytest.mark.faults
@pytest.mark.distributed
def test_four_ranks_killed_go_on_bit_for_bit_and_ranks_may_change(
    untouched_across: dict[int, float], tmp_path: Path
) -> None:
    four = [*ACROSS, "batch.micro_batch_sequences=1", "run.name=four", "trainer.devices=4"]
    whole = tiny.train(tmp_path, *four, "run.name=whole", num_ranks=4)
    assert whole.returncode == 0, whole.stderr
    stopped = tiny.train(tmp_path, *four, *killed(8, 1, rank=1), num_ranks=4)
    assert stopped.returncode == -9, stopped.stderr
    again = tiny.train(tmp_path, *four, num_ranks=4)
    assert again.returncode == 0, again.stderr
    assert tiny.losses(tmp_path / "runs/four") == tiny.losses(tmp_path / "runs/whole")
    assert list(tiny.losses(tmp_path / "runs/four").values()) == pytest.approx(
        list(untouched_across.values()), rel=ACROSS_WORLD_SIZES
    )


@pytest.mark.faults
@pytest.mark.distributed
def test_one_rank_then_two_then_one_again_follow_the_same_course(
    untouched_across: dict[int, float], tmp_path: Path
) -> None:
    name = [*ACROSS, "run.name=a"]
    assert tiny.train(tmp_path, *name, *killed(7)).returncode == -9
    assert tiny.train(tmp_path, *name, "trainer.devices=2", *killed(16), num_ranks=2).returncode == -9
    last = tiny.train(tmp_path, *name)
    assert last.returncode == 0, last.stderr
    losses = tiny.losses(tmp_path / "runs/a")
    assert list(losses.values()) == pytest.approx(list(untouched_across.values()), rel=ACROSS_WORLD_SIZES)
    assert list(losses)[:5] == list(untouched_across)[:5]


@pytest.mark.faults
def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    words = ["budget.steps=2", "run.name=a"]
    assert tiny.train(tmp_path, *words).returncode == 0
    before = (tmp_path / "runs/a/metrics.jsonl").read_bytes()
    again = tiny.train(tmp_path, *words)
    assert again.returncode == 0
    assert "Nothing left to do" in again.stdout
    assert (tmp_path / "runs/a/metrics.jsonl").read_bytes() == before
