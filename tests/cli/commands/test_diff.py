import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.diff import diff
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.status import Status
from tests.points import append_point
from tests.report.runs_on_disk import write_run


def test_settings_versions_and_results_that_differ_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_run(tmp_path / "a", optimizer={"lr": 0.1, "beta": 0.9}, run={"name": "a"})
    second = write_run(
        tmp_path / "b", optimizer={"lr": 0.2, "beta": 0.9}, run={"name": "b"}, status=Status("KILLED", 137)
    )
    (second / "attempts/1/versions.json").write_text(json.dumps({"torch": "0.1"}))
    assert diff([str(first), str(second), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {"optimizer.lr": ["0.1", "0.2"]}
    assert found["made with"]["torch"][1] == "0.1"
    assert found["results"] == {"status": ["FINISHED", "KILLED"]}
    assert diff([str(first), str(first)]) == 0
    assert capsys.readouterr().out.split().count("same") == 3
    append_point(RunLog(second), 2, 200, {"validation/bits_per_byte": 3.25})
    diff([str(first), str(second)])
    assert "bits_per_byte 3.5000 before training 3.2500 scored_step 0 2" in " ".join(capsys.readouterr().out.split())
    for run, source in ((first, "notes"), (second, "other")):
        (run / "dataset.json").write_text(
            json.dumps({"name": source, "splits": {"validation": {"text_bytes": 5000}}, "tokenizer_fingerprint": "t"})
        )
    assert diff([str(first), str(second)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    differ = (
        "The held-out texts differ, and no score of one compares with another's: notes (5,000 held-out bytes), other"
    )
    assert differ in told


def test_a_folder_of_several_runs_is_refused(tmp_path: Path) -> None:
    first = write_run(tmp_path / "race/a")
    write_run(tmp_path / "race/b")
    with pytest.raises(ConfigurationError, match="race holds 2 runs; name one of them"):
        diff([str(first), str(tmp_path / "race")])
