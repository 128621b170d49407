import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.settings import RunSettings


def test_a_run_is_named_after_its_overrides_unless_told_otherwise() -> None:
    assert RunSettings().name is None


@pytest.mark.parametrize("every_steps", [0, -1])
def test_a_log_interval_below_1_is_refused_with_the_nearest_that_is_valid(every_steps: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"run\.log_every_steps={every_steps} is below 1; nearest valid: 1"):
        RunSettings(log_every_steps=every_steps)
