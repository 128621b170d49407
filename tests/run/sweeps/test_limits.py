from dataclasses import replace

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.sweeps.limits import Allowance
from lmtrain.search.search_settings import SearchSettings


def test_the_plan_before_the_start_counts_seeds_and_runs_side_by_side() -> None:
    settings = SearchSettings(seeds=3, parallel=2, max_usd=2.5)
    allowance = Allowance(settings=settings, planned_seconds=600.0, usd_per_hour=2.0)
    line = allowance.line(4)
    assert line.startswith("4 trials of 3 seeds, about 30min")
    assert "1h" in line  # of the clock: two hours of runs, two at once
    assert line.endswith("$4.00; sweep.max_usd=2.5 has room for about 2 of them")
    of_steps = replace(allowance, has_start=False)
    assert "about 30min00s each by the plan, without start-up: 1h00min" in of_steps.line(4)


def test_a_halving_search_is_planned_by_its_rounds() -> None:
    settings = SearchSettings(max_hours=1.4)
    allowance = Allowance(settings=settings, planned_seconds=1200.0, usd_per_hour=None, rounds=[1, 2, 4])
    assert allowance.line(8) == "8 trials, about 20min00s for one to its end by the plan: 1h20min in rounds of halving"
    assert allowance.line(12).endswith("; sweep.max_hours=1.4 has room for about 8 of them")  # 8/4 + 4/4 + 2/2 runs
    assert "halving" not in replace(allowance, rounds=[4]).line(2)


def test_no_room_for_one_trial_and_no_price_are_refused() -> None:
    small = Allowance(settings=SearchSettings(max_hours=0.1), planned_seconds=3600.0, usd_per_hour=None)
    with pytest.raises(ConfigurationError, match=r"sweep\.max_hours=0\.1 is less than one trial takes"):
        small.line(3)
    with pytest.raises(ConfigurationError, match=r"sweep\.max_usd=5 needs a price"):
        Allowance(settings=SearchSettings(max_usd=5.0), planned_seconds=1.0, usd_per_hour=None)


def test_hours_are_of_the_clock_and_dollars_of_all_runs() -> None:
    two = Allowance(settings=SearchSettings(max_hours=1.0, parallel=2), planned_seconds=None, usd_per_hour=None)
    spent = "sweep.max_hours=1 is spent (1h00min of the clock)"
    assert two.spent_line(run_seconds=3500.0, clock_seconds=3600.0) == spent
    assert two.spent_line(run_seconds=7000.0, clock_seconds=3500.0) is None
    dollars = Allowance(settings=SearchSettings(max_usd=1.0), planned_seconds=None, usd_per_hour=2.0)
    assert dollars.spent_line(run_seconds=1800.0, clock_seconds=0.0)
    assert dollars.spent_line(run_seconds=1700.0, clock_seconds=9e9) is None
