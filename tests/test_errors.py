from pathlib import Path

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem, suggest, suggest_path


def test_each_refusal_has_the_documented_exit_code() -> None:
    assert [error.exit_code for error in (ConfigurationError, EnvironmentProblem, DataError)] == [2, 3, 4]


def test_the_nearest_name_or_path_is_suggested_only_when_near(tmp_path: Path) -> None:
    assert [suggest(word, ["lr", "momentum"]) for word in ("lrr", "zzz")] == [" Did you mean 'lr'?", ""]
    (tmp_path / "notes").mkdir()
    assert suggest_path(tmp_path / "note") == f" Did you mean '{tmp_path}/notes'?"
    assert [suggest_path(tmp_path / missing) for missing in ("zzz", "deeper/note")] == ["", ""]
