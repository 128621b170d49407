from pathlib import Path

from lmtrain.tracking.fork import Fork, read_fork, write_fork


def test_a_fork_remembers_the_other_run_and_its_steps(tmp_path, monkeypatch):
    assert read_fork(tmp_path) is None
    fork = Fork(checkpoint=tmp_path / "runs/dog/checkpoints/step_00000020", step=20)
    write_fork(tmp_path, fork)
    assert read_fork(tmp_path) == fork
    assert Path(fork.run).resolve() == tmp_path / "runs/dog"
    monkeypatch.chdir(tmp_path)
    assert fork.run == "runs/dog"
    assert Fork(checkpoint=Path("step_1"), step=1).run, "anybody's file"
