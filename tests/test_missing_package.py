import sys

from packaging.requirements import Requirement

from lmtrain.missing_package import install_command


def needs(extra: str, *packages: str) -> list[Requirement]:
    words = install_command(extra, *packages).replace("'", "").split()
    return [
        Requirement(word) for word in words[words.index("install") + 1 :] if word not in ("--python", sys.executable)
    ]


def test_packages_of_an_extra_are_named_at_its_versions() -> None:
    assert {one.name for one in needs("optim")} == {"lion-pytorch", "schedulefree", "torchao"}
    (lion,) = needs("optim", "lion_pytorch", "no_such")
    assert lion.name == "lion-pytorch"
    assert lion.specifier == Requirement("lion-pytorch>=0.2.5,<0.3").specifier
    assert {one.name for one in needs("flash")} == {"flash-attn", "flash-attn-4"}  # for one system alone
    assert {one.name for one in needs("data", "xxhash")} == {"datatrove", "spacy"}  # brought by another
