import pytest

from data_pipelines import extras
from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import install_command


def test_a_missing_extra_gives_one_line_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "spacy" else object())
    with pytest.raises(EnvironmentProblem) as refusal:
        extras.require_extra("deduplicate=minhash")
    command = install_command("data", "spacy")
    assert str(refusal.value) == f"deduplicate=minhash needs spacy, which is not installed; install with: {command}"


def test_what_is_there_is_not_asked_for():
    extras.require_extra("x=y", packages=("json",))
