import json
import os
import shutil
from pathlib import Path

from lmtrain.tracking.atomic_files import write_json
from lmtrain.tracking.fork import Fork, read_fork, write_fork


def test_a_fork_remembers_the_other_run_and_its_steps(tmp_path, monkeypatch):
    assert read_fork(tmp_path) is None
    checkpoint = tmp_path / "runs/dog/checkpoints/step_00000020"
    checkpoint.mkdir(parents=True)
    fork = Fork(checkpoint=checkpoint, step=20)
    write_fork(tmp_path, fork)
    assert read_fork(tmp_path) == fork
    assert Path(fork.run).resolve() == tmp_path / "runs/dog"
    monkeypatch.chdir(tmp_path)
    assert fork.run == "runs/dog"
    assert Fork(checkpoint=Path("step_1"), step=1).run, "anybody's file"


def read(folder: Path) -> Fork:
    found = read_fork(folder)
    assert found is not None
    return found


def began(folder: Path, *, at: float) -> Path:
    """Write a run with one checkpoint, called for the second of its beginning."""
    (folder / "checkpoints/step_00000020").mkdir(parents=True)
    write_json(folder / "run.json", {"run": f"begun at {at}", "created_at": at})
    return folder


def test_a_run_set_aside_since_is_known_by_its_identity(tmp_path):
    dog, cat = began(tmp_path / "dog", at=1.0), began(tmp_path / "cat", at=2.0)
    start = dog / "checkpoints/step_00000020"
    write_fork(cat, Fork(checkpoint=start, step=20))
    shutil.move(dog, tmp_path / "dog.before-1")
    began(dog, at=3.0)
    moved = tmp_path / "dog.before-1/checkpoints/step_00000020"
    found = read(cat)
    assert found == Fork(checkpoint=moved, step=20, noted=start)
    assert found.kept_checkpoint == moved
    assert found.starts_at(dog), "the command of its beginning, typed again"
    assert not found.starts_at(tmp_path / "bat")
    noted = json.loads((cat / "fork.json").read_text())
    write_json(cat / "fork.json", {name: noted[name] for name in ("checkpoint", "step")})
    assert read(cat) == found, "of the second when it began, where a file notes no identity"
    shutil.rmtree(tmp_path / "dog.before-1")
    for older in ({}, {"run": noted["run"]}):
        write_json(cat / "fork.json", {"checkpoint": str(start), "step": 20} | older)
        gone = read(cat)
        assert (gone.is_gone, gone.kept_checkpoint) == (True, None), "the run of its name is another one"
        where, _, said = gone.run_words.partition(", ")
        assert (Path(where).absolute(), said) == (dog, "no longer there")


def test_a_run_nobody_can_read_is_no_trouble_of_its_fork(tmp_path):
    dog, cat = began(tmp_path / "dog", at=1.0), began(tmp_path / "cat", at=2.0)
    write_fork(cat, Fork(checkpoint=dog / "checkpoints/step_00000020", step=20))
    (dog / "run.json").unlink()
    os.mkfifo(dog / "run.json")
    assert read(cat).is_gone


def test_a_run_moved_with_its_fork_is_found_beside_it(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    dog, cat = began(old / "dog", at=1.0), began(old / "cat", at=2.0)
    write_fork(cat, Fork(checkpoint=dog / "checkpoints/step_00000020", step=20))
    shutil.move(old, new)
    assert read(new / "cat").checkpoint == new / "dog/checkpoints/step_00000020"
