"""Back from a spike to the checkpoint before it: the losses are those of a run that never saw the batch."""

from pathlib import Path

import pytest

from lmtrain.run.stored_runs.skipped_batches import read_spikes
from lmtrain.run.stored_runs.trained_step import trained_step
from tests import tiny
from tests.faults.test_resume import killed

SPIKE = "{_target_: tests.faults.kill_at.SpikeAt, number: %d}"
WORDS = ["budget.steps=16", "callbacks.checkpoint.every_steps=4", "spikes.window_steps=8", "spikes.num_sigmas=60"]


@pytest.mark.faults
def test_a_run_that_went_back_was_killed_and_went_on_never_saw_the_batch(tmp_path: Path) -> None:
    never = tiny.train(tmp_path, *WORDS, "spikes=rewind", "batch.left_out=[9]", "run.name=never")
    assert never.returncode == 0, never.stderr
    words = [*WORDS, "spikes=rewind", "run.log_every_steps=5", "run.name=a", *killed(14), f"+callbacks.x={SPIKE % 9}"]
    back = tiny.train(tmp_path, *words)
    assert back.returncode == -9, back.stderr
    assert "step 10 has loss" in back.stdout
    assert "without windows 72 to 79 of the run's order" in back.stdout
    again = tiny.train(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    run = tmp_path / "runs/a"
    assert tiny.losses(run) == tiny.losses(tmp_path / "runs/never")
    assert [(spike["step"], spike["windows"]) for spike in read_spikes(run)] == [(10, [72, 79])]
    rows = [trained_step(tmp_path / "runs" / name, 10, allowed=["tests."]).numbers.tolist() for name in ("a", "never")]
    assert rows[0] == rows[1], "data show has the text that was trained on"


@pytest.mark.faults
def test_a_spike_stops_the_run_where_it_is_to_with_no_checkpoint_after_it(tmp_path: Path) -> None:
    words = [*WORDS, "spikes=halt", "run.log_every_steps=100", "run.name=a"]
    stopped = tiny.train(tmp_path, *words, "--allow-target", "tests.", f"+callbacks.x={SPIKE % 9}")
    assert stopped.returncode == 3, stopped.stderr
    assert "Step 10 has loss" in stopped.stderr
    assert "windows 72 to 79 of the run's order" in stopped.stderr
    assert max(path.name for path in (tmp_path / "runs/a/checkpoints").iterdir()) == "step_00000008"
    unwatched = tiny.train(tmp_path, *WORDS, "spikes=halt", "run.name=b", "~callbacks.training_health")
    assert unwatched.returncode == 2
    assert "spikes.then: must be rewind or skip without callbacks.training_health" in unwatched.stderr
