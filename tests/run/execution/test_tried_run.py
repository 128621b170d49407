import subprocess

from lmtrain.run.execution import tried_run
from lmtrain.run.execution.tried_run import TriedRun, kept, try_run
from lmtrain.tracking.run_log import Point


def test_words_of_a_trial_take_the_place_of_typed_ones():
    words = ["model=nano", "budget.steps=9", "+callbacks.x=1", "run.root=a", "schedule.lowest=1", "runs=2"]
    assert kept(words, also=("schedule",)) == ["model=nano", "runs=2"]


def test_a_refused_training_leaves_its_words_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    run = try_run(["model=nona"], num_steps=2, callbacks=["step_log"])
    assert (run.exit_code, run.points) == (2, ())
    assert "model=nona: there is no such option" in run.words
    assert not run.is_out_of_memory
    assert list(tmp_path.iterdir()) == []


def test_a_wait_tells_its_steps_and_the_time_left(tmp_path, monkeypatch):
    class Process:
        looks = 0

        def wait(self, timeout):
            self.looks += 1
            if self.looks > 3:
                return 0
            raise subprocess.TimeoutExpired("train", timeout)

    process, told = Process(), []
    monkeypatch.setattr(tried_run, "logged_points", lambda _: [Point(0.0, 10 * process.looks, 0, {})])
    monkeypatch.setattr("time.monotonic", lambda: 10.0 * process.looks)
    assert tried_run._waited(process, tmp_path, num_steps=100, tell=told.append) == 0
    assert told == ["step 10 of 100", "step 20 of 100, 1min20s left", "step 30 of 100, 1min10s left"]


def test_lack_of_memory_is_told_by_words_or_by_the_kernels_signal():
    assert TriedRun(exit_code=3, points=(), words="lmtrain: out of memory at ...").is_out_of_memory
    assert TriedRun(exit_code=-9, points=(), words="").is_out_of_memory
