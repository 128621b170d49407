from pathlib import Path

import pytest

import lmtrain
from lmtrain.run.compose.paths import conf_folder, key_of, without


def test_the_configuration_lies_beside_the_sources() -> None:
    assert (conf_folder() / "train.yaml").is_file()
    assert (conf_folder() / "model" / "llama_tiny.yaml").is_file()


def test_an_installed_package_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "lmtrain"
    (package / "conf").mkdir(parents=True)
    monkeypatch.setattr(lmtrain, "__path__", [str(package)])
    assert conf_folder() == package / "conf"


def test_a_key_is_told_without_its_sign_and_value() -> None:
    assert [key_of(word) for word in ("a.b=c=d", "+a.b=1", "++a=2", "~a.c")] == ["a.b", "a.b", "a", "a.c"]


def test_a_name_takes_along_all_below_it_and_nothing_beside_it() -> None:
    words = ["run.name=a", "run.names=b", "+run.name.x=1", "~budget", "runs=2"]
    assert without(words, ("run.name", "budget")) == ["run.names=b", "runs=2"]
