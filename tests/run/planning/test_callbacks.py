import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config
from lmtrain.run.validators.callbacks import callback_facts, callback_lines, require_end
from tests.configs import config_of


def facts_of(*words):
    return callback_facts(read_config(compose_config([*words])))


def test_a_setting_of_the_wrong_type_is_refused_by_its_key():
    with pytest.raises(ConfigurationError, match=r"callbacks\.checkpoint\.keep_last"):
        facts_of("callbacks.checkpoint.keep_last=[]")


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


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["callbacks=[step_log,token_budget]"],
        ["callbacks=[default,early_stopping]", "callbacks.checkpoint=null", "~callbacks.graceful_stop"],
        ["~callbacks.time_budget"],
        ["budget.hours=1", "callbacks=[time_budget,token_budget]"],
    ],
)
def test_other_callbacks_may_go(words: list[str]) -> None:
    require_end(config_of(*words))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["callbacks=[token_budget]"], "no callbacks.checkpoint: nothing of this run is saved"),
        (["callbacks=[token_budget,graceful_stop]"], "no callbacks.checkpoint: nothing of this run is saved"),
        (["~callbacks.graceful_stop"], "no callbacks.graceful_stop: a signal ends this run at once"),
        ([], None),
    ],
)
def test_what_is_not_saved_and_what_never_stops_is_told(words: list[str], told: str | None) -> None:
    lines = callback_lines(config_of(*words))
    assert lines == [] if told is None else len(lines) == 1 and told in lines[0]
