import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.sweeps.limits import SearchLimits
from lmtrain.search.search_settings import SearchSettings


def test_dollars_need_a_price() -> None:
    with pytest.raises(ConfigurationError, match=r"sweep\.max_usd=5 needs a price"):
        SearchLimits(settings=SearchSettings(max_usd=5.0), usd_per_hour=None)


def test_hours_are_of_the_clock_and_dollars_of_all_runs() -> None:
    two = SearchLimits(settings=SearchSettings(max_hours=1.0, parallel=2), usd_per_hour=None)
    assert two.reached(run_seconds=3500.0, clock_seconds=3600.0)
    assert two.reached(run_seconds=7000.0, clock_seconds=3500.0) is None
    dollars = SearchLimits(settings=SearchSettings(max_usd=1.0), usd_per_hour=2.0)
    assert dollars.reached(run_seconds=1800.0, clock_seconds=0.0)
    assert dollars.reached(run_seconds=1700.0, clock_seconds=9e9) is None
