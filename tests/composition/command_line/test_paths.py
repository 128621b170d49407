from pathlib import Path

import pytest

import lmtrain
from lmtrain.composition.command_line.paths import conf_folder


def test_the_configuration_lies_beside_the_sources() -> None:
    assert (conf_folder() / "train.yaml").is_file()
    assert (conf_folder() / "model" / "llama_tiny.yaml").is_file()


def test_an_installed_package_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "lmtrain"
    (package / "conf").mkdir(parents=True)
    monkeypatch.setattr(lmtrain, "__path__", [str(package)])
    assert conf_folder() == package / "conf"
