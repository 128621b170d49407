"""A package that is missing is named, with the command that installs it."""

import pytest
import torch

from lmtrain import missing_package as needed_packages
from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import has_compiler, install_command, optimizer_class


def test_a_missing_package_is_named_with_its_command() -> None:
    with pytest.raises(EnvironmentProblem) as missing:
        optimizer_class("x", module="no_such.optim", name="X")
    assert str(missing.value) == (
        f"optimizer=x needs the package no_such: {install_command('optim')}, or use optimizer=adamw."
    )


def test_a_class_is_found() -> None:
    assert optimizer_class("x", module="torch.optim", name="SGD") is torch.optim.SGD


def test_a_compiler_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed_packages.shutil, "which", lambda name: "/bin/g++" if name == "g++" else None)
    assert has_compiler()
    monkeypatch.setattr(needed_packages.shutil, "which", lambda name: None)
    assert not has_compiler()
