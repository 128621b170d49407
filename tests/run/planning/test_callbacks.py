import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.validators.callbacks import require_end
from tests.configs import config_of


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["callbacks=[early_stopping,validation]", "budget.tokens=20K"],
            r"tokens=20.0K; keep .*token_budget of",
        ),
        (["budget=none", "budget.steps=3", "~callbacks.token_budget"], r"at budget.steps=3; keep .*token_budget of"),
        (
            ["budget=none", "budget.hours=1", "callbacks=[token_budget]"],
            r"at budget.hours=1; keep .*time_budget of",
        ),
        (["budget.hours=1", "callbacks.time_budget=null"], r"at budget.hours=1; keep callbacks.time_budget of"),
    ],
)
def test_callbacks_that_never_end_the_run_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_end(config_of(*words))
