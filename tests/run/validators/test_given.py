import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning.plan import planned_runs
from lmtrain.run.validators.given import require_given


def test_a_setting_without_a_value_is_named() -> None:
    require_given(compose_config([]))
    with pytest.raises(
        ConfigurationError,
        match=r"^source\.paths has no value; set it .*: 'source.paths=\[my/notes\]'$",
    ):
        require_given(compose_config(["source=files"]))


def test_a_plan_asks_for_it_as_training_does() -> None:
    with pytest.raises(ConfigurationError, match=r"source\.paths has no value"):
        planned_runs(["source=files"])
