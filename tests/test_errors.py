from pathlib import Path

import pytest

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, DataError, EnvironmentProblem, suggest, suggest_path


def test_each_refusal_has_the_documented_exit_code() -> None:
    assert [error.exit_code for error in (ConfigurationError, EnvironmentProblem, DataError)] == [2, 3, 4]


def test_what_a_person_typed_is_a_value_error_and_what_the_machine_did_a_runtime_error() -> None:
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(DataError, ValueError)
    assert issubclass(EnvironmentProblem, RuntimeError)
    assert set(LMTRAIN_ERRORS) == {ConfigurationError, EnvironmentProblem, DataError}


@pytest.mark.parametrize(("word", "answer"), [("lrr", " Did you mean 'lr'?"), ("zzz", "")])
def test_the_nearest_name_is_suggested_only_when_near(word: str, answer: str) -> None:
    assert suggest(word, ["lr", "momentum"]) == answer


def test_a_mistyped_path_is_answered_by_a_whole_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert suggest_path(tmp_path / "note") == f" Did you mean '{tmp_path}/notes'?"
    assert [suggest_path(tmp_path / missing) for missing in ("zzz", "deeper/note")] == ["", ""]
