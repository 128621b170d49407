from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.report.comparing.against import against, baseline_runs
from lmtrain.report.comparing.compared_run import ComparedRun
from lmtrain.tracking.held_out_text import HeldOutText


def run_of(value: float, *, seed: str = "1", num_bytes: int = 100) -> ComparedRun:
    return ComparedRun(
        folder=Path("run"), name="run", status="FINISHED", exit_code=0, step=4, num_steps=4, seed=seed, settings={},
        words=(), held_out=HeldOutText(source="s", split_bytes=100, num_bytes=num_bytes, tokenizer="t"),
        curve=[(8.0, value)], flops_per_token=1.0, tokens_per_second=None,
    )  # fmt: skip


SEEDS = [run_of(value, seed=str(seed)) for seed, value in enumerate([1.0, 1.01, 1.02])]


def test_only_what_is_better_by_more_than_noise_is_kept() -> None:
    # s = 0.01, t(2) = 4.303: another seed lies within 4.303 * 0.01 * sqrt(4 / 3) = 0.0497 of the mean, at 95%
    assert against(run_of(0.97), SEEDS, name="b").plus_minus == pytest.approx(0.04969, rel=1e-3)
    verdicts = {value: against(run_of(value), SEEDS, name="b") for value in (0.95, 0.97, 1.05, 1.07)}
    assert [found.verdict for found in verdicts.values()] == ["better", "noise", "noise", "worse"]
    assert [found.keep for found in verdicts.values()] == [True, False, False, False]


def test_one_seed_another_text_and_an_unfinished_run_have_no_verdict() -> None:
    single = against(run_of(0.5), SEEDS[:1], name="b")
    assert (single.verdict, single.difference, single.keep) == ("unknown", -0.5, False)
    assert "second run with another seed" in (single.reason or "")
    assert "held-out text is another" in (against(run_of(0.5, num_bytes=50), SEEDS, name="b").reason or "")
    stopped = replace(run_of(0.5), status="KILLED", step=2)
    assert against(stopped, SEEDS, name="b").verdict == "unknown"


def test_a_run_of_another_budget_is_told_and_not_kept() -> None:
    def of_steps(run: ComparedRun, steps: str, tokens: float) -> ComparedRun:
        return replace(run, settings={"budget.steps": steps}, curve=[(tokens, run.final)])

    seeds = [of_steps(run, "4", 8.0) for run in SEEDS]
    longer = against(of_steps(run_of(0.5), "6", 12.0), seeds, name="b")
    assert (longer.verdict, longer.keep, longer.difference) == ("unknown", False, pytest.approx(-0.51))
    assert longer.reason == ("its budget is another: budget.steps=6, not 4 (12 tokens, not 8); give both the same")
    assert against(of_steps(run_of(0.5), "2", 8.0), seeds, name="b").keep, "as many tokens in larger batches"
    assert against(of_steps(run_of(0.5), "4", 16.0), seeds, name="b").keep, "the same words of another choice"


def test_a_baseline_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no run"):
        baseline_runs(tmp_path)
