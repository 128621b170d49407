import pytest

from lmtrain.composition.rules.passes import require_passes
from lmtrain.errors import ConfigurationError
from tests.configs import config_of

STOPPING = "callbacks=[default,early_stopping]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["callbacks=[early_stopping,divergence]"],
            r"callbacks.early_stopping acts on validations and there are none; nearest valid: "
            r"'callbacks=\[default,early_stopping,divergence\]', which has callbacks.validation",
        ),
        (
            [STOPPING, "callbacks.validation.num_passes=null"],
            "set callbacks.validation.num_passes or callbacks.validation.every_steps",
        ),
        (["callbacks.validation.every_steps=10"], "num_passes=4 and every_steps=10 are two answers to one question"),
    ],
)
def test_early_stopping_without_validations_and_two_numbers_of_them_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_passes(config_of(*words))


@pytest.mark.parametrize("words", [[], [STOPPING], ["callbacks.validation.num_passes=null"]])
def test_other_callbacks_pass(words: list[str]) -> None:
    require_passes(config_of(*words))
