import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.outcome import outcome_line
from lmtrain.cli.commands.train import train
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial


def written(folder: Path, *, step: int) -> Path:
    folder.mkdir()
    metrics = {"validation/bits_per_byte": 2.5, "cost/usd": 0.25}
    line = {"time": 0, "step": step, "tokens": 8 * step, "metrics": metrics}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "plan.json").write_text(json.dumps({"horizon": {"steps": 4, "limited_by": "tokens"}}))
    return folder


def test_a_run_ends_with_its_score_budget_and_dollars(tmp_path: Path) -> None:
    found = outcome_line(written(tmp_path / "run", step=4), 0)
    assert (found["score"], found["tokens"], found["usd"], found["exit_code"]) == (2.5, 32, 0.25, 0)
    assert found["exit_reason"] == "budget.tokens is spent"
    dear = written(tmp_path / "dear", step=2)
    horizon = {"steps": 2, "limited_by": "tokens", "time_limit": "usd", "most_steps": 4}
    (dear / "plan.json").write_text(json.dumps({"horizon": horizon}))
    assert outcome_line(dear, 0)["exit_reason"] == "budget.usd is spent"
    early = written(tmp_path / "early", step=2)
    (early / "events").mkdir()
    row = {"name": "early_stopping", "start": 1.0, "step": 2}
    (early / "events/rank0.jsonl").write_text(json.dumps(row) + "\n")
    assert outcome_line(early, 0)["exit_reason"] == "callbacks.early_stopping ended it at step 2"
    assert outcome_line(written(tmp_path / "stopped", step=2), 143)["exit_reason"] == "terminated"


def test_a_failure_and_a_refusal_have_a_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome_line(written(tmp_path / "run", step=2), 3, "step 2 has loss nan")
    assert (found["exit_code"], found["exit_reason"], found["step"]) == (3, "step 2 has loss nan", 2)
    with pytest.raises(ConfigurationError):
        train(["--json", "model=none_such"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["exit_code"], found["run"]) == (2, None)
    assert "none_such" in found["exit_reason"]


def test_a_sweep_ends_with_its_best_trial(tmp_path: Path) -> None:
    trials = [SweepTrial(number=0, values={"seed": "1"}, state="finished", score=2.0), SweepTrial(number=1, values={})]
    SweepFile(name="s", kind="search", metric="m", fingerprint="f", command="c", trials=trials,
              reason="sweep.max_hours=1 is spent").save(tmp_path)  # fmt: skip
    found = outcome_line(tmp_path, 0)
    assert (found["best"]["number"], found["trials"]) == (0, {"finished": 1, "waiting": 1})
    assert (found["exit_reason"], found["unranked"]) == ("sweep.max_hours=1 is spent", None)
