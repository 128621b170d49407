"""Forks, held checkpoints, sweeps: what else lies in a folder of runs."""

import json
import shutil
from pathlib import Path

import pytest

from lmtrain.errors import DataError
from lmtrain.tracking.atomic_files import write_json
from lmtrain.tracking.fork import Fork, read_fork, write_fork
from lmtrain.tracking.held_checkpoints import begin_scoring, held, hold, put_back, release, step_of, waiting
from lmtrain.tracking.sweep_file import (
    HeldOutText,
    SweepFile,
    SweepRun,
    SweepTrial,
    read_sweep,
)


def read(folder: Path) -> Fork:
    found = read_fork(folder)
    assert found is not None
    return found


def began(folder: Path, *, at: float) -> Path:
    """Write a run with one checkpoint, called for the second of its beginning."""
    (folder / "checkpoints/step_00000020").mkdir(parents=True)
    write_json(folder / "run.json", {"run": f"begun at {at}", "created_at": at})
    return folder


def test_a_run_that_was_left_is_known_by_its_identity(tmp_path):
    dog, cat = began(tmp_path / "dog", at=1.0), began(tmp_path / "cat", at=2.0)
    start = dog / "checkpoints/step_00000020"
    write_fork(cat, Fork(checkpoint=start, step=20))
    assert read(cat) == Fork(checkpoint=start, step=20)
    shutil.move(dog, tmp_path / "dog.before-1")
    began(dog, at=3.0)
    gone = read(cat)
    assert (gone.is_gone, gone.kept_checkpoint) == (True, None), "the run of its name is another one"
    assert gone.starts_at(dog), "the command of its beginning, typed again"
    assert not gone.starts_at(tmp_path / "bat")


def checkpoint(run, step):
    folder = run / "checkpoints" / f"step_{step:08d}"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "weights").write_text("w" * step)
    return folder


def test_a_held_checkpoint_outlives_its_own_and_takes_no_room(tmp_path):
    folder = checkpoint(tmp_path, 20)
    place = hold(tmp_path, folder)
    assert (place / "inner" / "weights").stat().st_ino == (folder / "inner" / "weights").stat().st_ino
    shutil.rmtree(folder)
    assert (place / "inner" / "weights").read_text() == "w" * 20
    assert step_of(place) == 20
    release(place)
    assert held(tmp_path) == []


def test_one_process_alone_takes_a_waiting_one_and_a_killed_one_s_waits_again(tmp_path):
    places = [hold(tmp_path, checkpoint(tmp_path, step)) for step in (30, 20)]
    assert waiting(tmp_path) == places[::-1], "the oldest first"
    taken = begin_scoring(places[0])
    assert taken is not None
    assert begin_scoring(places[0]) is None
    assert (waiting(tmp_path), held(tmp_path)) == ([places[1]], [places[1], taken])
    assert not release(places[0]), "its run cannot give it up any more"
    put_back(tmp_path)
    assert waiting(tmp_path) == places[::-1]


def test_a_sweep_is_read_as_it_was_written_with_its_best_trial(tmp_path: Path) -> None:
    scores = [("finished", 2.0), ("pruned", 0.5), ("finished", 1.0), ("running", None)]
    sweep = SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c", trials=[
        SweepTrial(number=number, values={"seed": "1"}, state=state, score=score, runs=[SweepRun(folder="a", seed=1)])
        for number, (state, score) in enumerate(scores)
    ])  # fmt: skip
    sweep.trials[0].runs[0].held_out = HeldOutText(source="notes", split_bytes=9, num_bytes=9, tokenizer="t")
    sweep.save(tmp_path)
    assert sweep.best == 2
    assert read_sweep(tmp_path) == sweep
    assert read_sweep(tmp_path / "none") is None


@pytest.mark.parametrize("other", [{"version": 0}, {"new_key": 1}, {"trials": [{"number": 0, "new_key": 1}]}])
def test_a_sweep_of_another_version_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c").save(tmp_path)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | other))
    with pytest.raises(DataError, match="another version of lmtrain"):
        read_sweep(tmp_path)
