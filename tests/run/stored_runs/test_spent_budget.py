import json
from pathlib import Path

import pytest

from lmtrain.accounting.budgets import Horizon
from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.spent_budget import nothing_left
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts

OWN, OTHER = Path("runs/cat/checkpoints/step_20"), Path("runs/a/checkpoints/step_20")
OF_TIME = Horizon(steps=100_000, tokens=10**8, flops=10**12, limited_by="hours", seconds=100.0, time_limit="hours")


def line(step: int, *, of: int, path: Path = OWN) -> str | None:
    horizon = Horizon(steps=of, tokens=1000 * of, flops=10**9, limited_by="tokens", most_steps=of)
    facts = CheckpointFacts(path=path, step=step, tokens=step * 1000, identity={}, metrics={})
    return nothing_left(horizon, facts, folder=Path("runs/cat"), spent_seconds=0.0)


@pytest.mark.parametrize(("earlier_seconds", "is_spent"), [(99.0, False), (100.0, True), (500.0, True)])
def test_a_budget_of_time_is_spent_by_all_attempts_together(
    tmp_path: Path, earlier_seconds: float, is_spent: bool
) -> None:
    facts = CheckpointFacts(path=tmp_path / "checkpoints/step_40", step=40, tokens=4000, identity={}, metrics={})
    assert bool(nothing_left(OF_TIME, facts, folder=tmp_path, spent_seconds=earlier_seconds)) is is_spent
    for seconds, steps in ((100.0, 41), (90.0, 40), (100.0, 40)):  # of an earlier end, the last one the same
        (tmp_path / "plan.json").write_text(json.dumps({"horizon": {"steps": steps, "seconds": seconds}}))
        found = nothing_left(OF_TIME, facts, folder=tmp_path, spent_seconds=earlier_seconds)
        assert bool(found) is (is_spent or (seconds, steps) == (100.0, 40))


def test_a_fork_without_a_step_left_names_the_other_runs_checkpoint() -> None:
    told = line(20, of=20, path=OTHER)
    assert told is not None
    assert told.startswith(f"Nothing left to do: {OTHER} is at step 20 (20.0K tokens), the end of")
    assert "raise budget.tokens above it" in told
    assert "`lmtrain generate runs/a`" in told


def test_a_budget_that_is_not_spent_has_steps_left() -> None:
    assert line(19, of=20) is None


def test_a_run_past_its_budget_is_refused_under_the_key_that_ends_it() -> None:
    with pytest.raises(ConfigurationError, match=r"budget\.tokens ends the run at step 20, .*step 21.*resume=never"):
        line(21, of=20)
