import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.training.intervals import LastStep
from lmtrain.training.profilers import ProfiledSteps


def steps(**settings):
    plain = {"wait_steps": 2, "num_steps": 3, "ranks": [0], "num_ranks": 2, "last_step": LastStep(5)}
    return ProfiledSteps(**{**plain, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wait_steps": -1}, r"profiler\.wait_steps=-1 is below 0; nearest valid: 0"),
        ({"ranks": [2]}, r"profiler\.ranks=\[2\]: the run has 0 to 1"),
        ({"ranks": []}, r"profiler\.ranks=\[\] records nothing"),
        ({"wait_steps": 3}, r"beyond the run's 5 steps; nearest valid: profiler\.wait_steps=2"),
        ({"num_steps": 9}, r"nearest valid: a budget of 11 steps"),
    ],
)
def test_steps_and_ranks_outside_the_run_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        steps(**settings)
