import pytest

from lmtrain.tracking.redacting.secret_values import is_telling, remember_secrets, resolve_references, secret_values


def known():
    return {value for value, _ in secret_values()}


def test_variables_of_a_secret_name_are_known_and_others_are_not(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "canary-value-1")
    monkeypatch.setenv("A_PLACE", "canary-value-2")
    assert "canary-value-1" in known()
    assert "canary-value-2" not in known()


def test_variable_that_a_config_refers_to_is_known_from_then_on(monkeypatch):
    monkeypatch.setenv("A_PLACE", "canary-value-2")
    remember_secrets({"a": ["x-${oc.env:A_PLACE,y}"]}, {"a": ["x-canary-value-2"]})
    assert ("canary-value-2", "A_PLACE") in secret_values()


def test_password_and_key_that_were_typed_are_known(monkeypatch):
    remember_secrets({}, {"uri": "http://me:canary-value-3@h", "api_key": "canary-value-4", "b": ["canary-value-5"]})
    assert {"canary-value-3", "canary-value-4"} <= known()
    assert "canary-value-5" not in known()


def test_longer_secret_comes_first(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "canary-value")
    monkeypatch.setenv("B_TOKEN", "canary-value-and-more")
    found = [value for value, _ in secret_values()]
    assert found.index("canary-value-and-more") < found.index("canary-value")


@pytest.mark.parametrize("value", ["", "1", "true", "postgres", "12345678", "-1234567.5", "0.00030000"])
def test_short_value_word_and_number_are_not_looked_for(value):
    assert not is_telling(value)


@pytest.mark.parametrize("value", ["canary-1", "Canarybi", "canarycanary", "0123456789012345"])
def test_long_and_odd_value_is_looked_for(value):
    assert is_telling(value)


def test_path_of_a_file_is_no_secret(tmp_path):
    assert not is_telling(str(tmp_path))
    assert is_telling(str(tmp_path / "not-there"))
    assert is_telling("x" * 10_000)


def test_references_are_resolved_where_the_variable_is_set(monkeypatch):
    monkeypatch.setenv("A_PLACE", "there")
    value = {"a": ["x-${oc.env:A_PLACE}", 1, None], "b": "${oc.env:NOT_SET_ANYWHERE}"}
    assert resolve_references(value) == {"a": ["x-there", 1, None], "b": "${oc.env:NOT_SET_ANYWHERE}"}
