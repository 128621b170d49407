import pytest

from lmtrain.composition.execution.searching.allowance import Allowance
from lmtrain.errors import ConfigurationError
from lmtrain.search.search_settings import SearchSettings


def test_the_plan_before_the_start_counts_seeds_and_runs_side_by_side() -> None:
    settings = SearchSettings(seeds=3, parallel=2, max_usd=2.5)
    allowance = Allowance(settings=settings, planned_seconds=600.0, usd_per_hour=2.0)
    line = allowance.line(4)
    assert line.startswith("4 trials of 3 seeds, about 30min")
    assert "1h" in line  # of the clock: two hours of runs, two at once
    assert line.endswith("$4.00; sweep.max_usd=2.5 has room for about 2 of them")


def test_no_room_for_one_trial_and_no_price_are_refused() -> None:
    small = Allowance(settings=SearchSettings(max_hours=0.1), planned_seconds=3600.0, usd_per_hour=None)
    with pytest.raises(ConfigurationError, match=r"sweep\.max_hours=0\.1 is less than one trial takes"):
        small.line(3)
    with pytest.raises(ConfigurationError, match=r"sweep\.max_usd=5 needs a price"):
        Allowance(settings=SearchSettings(max_usd=5.0), planned_seconds=1.0, usd_per_hour=None)


def test_an_unknown_speed_is_said() -> None:
    line = Allowance(settings=SearchSettings(), planned_seconds=None, usd_per_hour=None).line(3)
    assert "speed is not known" in line
