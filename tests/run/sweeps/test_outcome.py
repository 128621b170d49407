import json
from pathlib import Path

from lmtrain.run.sweeps.outcome import outcome_of

METRIC = "validation/loss"


def with_points(folder: Path, *values: float | None) -> Path:
    lines = [
        json.dumps({"time": 0, "step": step, "tokens": 0, "metrics": {METRIC: value}})
        for step, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_the_last_value_is_the_score_and_a_stop_is_no_end(tmp_path: Path) -> None:
    run = with_points(tmp_path, 3.0, 2.5)
    assert (outcome_of(run, 0, metric=METRIC).state, outcome_of(run, 0, metric=METRIC).score) == ("finished", 2.5)
    assert (outcome_of(run, 143, metric=METRIC).state, outcome_of(run, 143, metric=METRIC).score) == ("stopped", 2.5)


def test_the_kind_of_a_failure_is_its_state_and_a_refusal_has_words(tmp_path: Path) -> None:
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "rank0.error.json").write_text(json.dumps({"message": "reset by peer", "kind": "RuntimeError"}))
    (attempt / "rank1.error.json").write_text(json.dumps({"message": "loss nan", "kind": "Diverged"}))
    found = outcome_of(tmp_path, 3, metric=METRIC)
    assert (found.state, found.reason) == ("diverged", "loss nan")  # the other rank's error follows from it
    assert outcome_of(tmp_path / "none", 2, metric=METRIC, refusal="no").reason == "no"
    assert "SIGKILL" in (outcome_of(tmp_path / "none", 137, metric=METRIC).reason or "")
