from pathlib import Path

from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial, read_sweep


def test_a_sweep_is_read_as_it_was_written_with_its_best_trial(tmp_path: Path) -> None:
    scores = [("finished", 2.0), ("pruned", 0.5), ("finished", 1.0), ("running", None)]
    sweep = SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c", trials=[
        SweepTrial(number=number, values={"seed": "1"}, state=state, score=score, runs=[SweepRun(folder="a", seed=1)])
        for number, (state, score) in enumerate(scores)
    ])  # fmt: skip
    sweep.save(tmp_path)
    assert sweep.best == 2
    assert read_sweep(tmp_path) == sweep
    assert read_sweep(tmp_path / "none") is None
