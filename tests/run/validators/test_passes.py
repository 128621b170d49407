import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.validators.callbacks import patience_line, require_passes
from tests.configs import config_of

STOPPING = "callbacks=[default,early_stopping]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["callbacks=[early_stopping,divergence]"],
            r"callbacks.early_stopping needs validations, .*nearest valid: "
            r"'callbacks=\[default,early_stopping,divergence\]', which has callbacks.validation",
        ),
        (
            [STOPPING, "callbacks.validation.num_passes=null"],
            "set callbacks.validation.num_passes or callbacks.validation.every_steps",
        ),
        (["callbacks.validation.every_steps=10"], "num_passes=4 and every_steps=10 are two answers to one question"),
        (
            ["callbacks.validation.num_passes=null", "callbacks.validation.every_steps=0"],
            "callbacks.validation.every_steps=0 is below 1; nearest valid: 1",
        ),
        (
            [STOPPING, "callbacks.early_stopping.metric=validation/los"],
            r"metric=validation/los .*bits_per_byte, .*Did you mean 'validation/loss'",
        ),
        ([STOPPING, "callbacks.early_stopping.metric=validation/ema_loss"], "must be one of"),
    ],
)
def test_validations_that_nothing_can_be_judged_by_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_passes(config_of(*words))


@pytest.mark.parametrize(
    "words",
    [
        [],
        [STOPPING],
        [STOPPING, "weight_average=ema", "callbacks.early_stopping.metric=validation/ema_loss"],
        ["callbacks.validation.num_passes=null"],
    ],
)
def test_other_callbacks_pass(words: list[str]) -> None:
    require_passes(config_of(*words))


@pytest.mark.parametrize(
    ("words", "patience"),
    [
        (["callbacks.early_stopping.patience=4"], 3),
        (["callbacks.validation.every_steps=40", "callbacks.validation.num_passes=null"], 2),
        ([], None),
        (["callbacks.early_stopping.patience=9", "callbacks.early_stopping.stop_at=1.5"], None),
    ],
)
def test_a_patience_as_long_as_the_run_is_told_with_one_that_ends_it(words: list[str], patience: int | None) -> None:
    line = patience_line(config_of(STOPPING, *words), 100)
    assert (
        line is None if patience is None else line and line.endswith(f"callbacks.early_stopping.patience={patience}.")
    )


def test_a_run_of_one_step_has_no_patience_with_an_effect() -> None:
    assert "or a longer budget." in (patience_line(config_of(STOPPING), 1) or "")
    assert patience_line(config_of(), 1) is None
