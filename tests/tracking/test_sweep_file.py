import json
from pathlib import Path

import pytest

from lmtrain.errors import DataError
from lmtrain.tracking.sweep_file import HeldOutText, SweepFile, SweepRun, SweepTrial, read_sweep


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


def test_a_truncated_sweep_is_damaged_and_not_absent(tmp_path: Path) -> None:
    SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c").save(tmp_path)
    path = tmp_path / "sweep.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"sweep\.json is damaged: no whole JSON object; restore it"):
        read_sweep(tmp_path)
