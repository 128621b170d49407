import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.outcome import OutcomeLine
from lmtrain.errors import Diverged
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial


def last_line(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def written(folder: Path, *, step: int) -> Path:
    folder.mkdir()
    metrics = {"validation/bits_per_byte": 2.5, "cost/usd": 0.25}
    line = {"time": 0, "step": step, "tokens": 8 * step, "metrics": metrics}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "plan.json").write_text(json.dumps({"horizon": {"steps": 4, "limited_by": "tokens"}}))
    return folder


def test_a_run_ends_with_its_score_budget_and_dollars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert OutcomeLine(folder=written(tmp_path / "run", step=4)).print_after(lambda: 0) == 0
    found = last_line(capsys)
    assert (found["score"], found["tokens"], found["usd"], found["exit_code"]) == (2.5, 32, 0.25, 0)
    assert found["exit_reason"] == "budget.tokens is spent"
    dear = written(tmp_path / "dear", step=2)
    horizon = {"steps": 2, "limited_by": "tokens", "time_limit": "usd", "most_steps": 4}
    (dear / "plan.json").write_text(json.dumps({"horizon": horizon}))
    OutcomeLine(folder=dear).print_after(lambda: 0)
    assert last_line(capsys)["exit_reason"] == "budget.usd is spent"
    early = written(tmp_path / "early", step=2)
    (early / "events").mkdir()
    row = {"name": "early_stopping", "start": 1.0, "step": 2}
    (early / "events/rank0.jsonl").write_text(json.dumps(row) + "\n")
    OutcomeLine(folder=early).print_after(lambda: 0)
    assert last_line(capsys)["exit_reason"] == "callbacks.early_stopping ended it at step 2"
    OutcomeLine(folder=written(tmp_path / "stopped", step=2)).print_after(lambda: 143)
    assert last_line(capsys)["exit_reason"] == "terminated"


def test_a_failure_and_a_refusal_have_a_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def diverge() -> int:
        raise Diverged("step 2 has loss nan")

    with pytest.raises(Diverged):
        OutcomeLine(folder=written(tmp_path / "run", step=2)).print_after(diverge)
    found = last_line(capsys)
    assert (found["exit_code"], found["exit_reason"], found["step"]) == (3, "step 2 has loss nan", 2)
    with pytest.raises(Diverged):
        OutcomeLine().print_after(diverge)
    assert last_line(capsys)["run"] is None


def test_a_sweep_ends_with_its_best_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = [SweepTrial(number=0, values={"seed": "1"}, state="finished", score=2.0), SweepTrial(number=1, values={})]
    SweepFile(name="s", kind="search", metric="m", fingerprint="f", command="c", trials=trials,
              reason="sweep.max_hours=1 is spent").save(tmp_path)  # fmt: skip
    OutcomeLine(folder=tmp_path).print_after(lambda: 0)
    found = last_line(capsys)
    assert (found["best"]["number"], found["trials"]) == (0, {"finished": 1, "waiting": 1})
    assert (found["exit_reason"], found["unranked"]) == ("sweep.max_hours=1 is spent", None)
