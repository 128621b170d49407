import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lmtrain import missing_package
from lmtrain.missing_package import install_command


def needs(extra: str, *packages: str) -> list[Requirement]:
    words = install_command(extra, *packages).replace("'", "").split()
    return [Requirement(word) for word in words[words.index("install") + 1 :]]


def test_packages_of_an_extra_are_named_at_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert {one.name for one in needs("optim")} == {"lion-pytorch", "schedulefree", "torchao"}
    (lion,) = needs("optim", "lion_pytorch", "no_such")
    assert lion.name == "lion-pytorch"
    assert lion.specifier == Requirement("lion-pytorch>=0.2.5,<0.3").specifier
    assert {one.name for one in needs("flash")} == {"flash-attn", "flash-attn-4"}  # for one system alone
    assert {one.name for one in needs("data", "xxhash")} == {"datatrove", "spacy"}  # brought by another


@pytest.mark.parametrize(
    ("has_pip", "is_active", "command"),
    [
        (True, False, f"{sys.executable} -m pip install "),
        (False, True, "uv pip install 'gguf"),
        (False, False, f"uv pip install --python {sys.executable} "),
    ],
)
def test_the_installer_of_this_environment_is_named(
    *, has_pip: bool, is_active: bool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [folder for folder in sys.path if not (Path(folder) / "pip").is_dir()]
    monkeypatch.setattr(sys, "path", [*own, str(tmp_path)])
    if has_pip:
        (tmp_path / "pip").mkdir()
    monkeypatch.setattr(missing_package.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix if is_active else "/elsewhere")
    assert install_command("gguf").startswith(command)
