"""One reading: typed, frozen, the same for a plan and a run."""

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.run_config import read_config
from tests.configs import default_config


def test_a_setting_of_a_callback_that_is_switched_off_is_refused():
    values = {**default_config().values, "callbacks": {"checkpoint": {"keep_last": 2}}}
    with pytest.raises(ConfigurationError, match=r"^callbacks\.checkpoint\.keep_last: must not be given with"):
        read_config(values)
    for callbacks, said in (
        ({"checkpoint": False}, r"^callbacks\.checkpoint: must be a mapping"),
        (None, r"^callbacks: must have"),
    ):
        given = {name: value for name, value in values.items() if name != "callbacks"}
        with pytest.raises(ConfigurationError, match=said):
            read_config(given if callbacks is None else {**given, "callbacks": callbacks})
