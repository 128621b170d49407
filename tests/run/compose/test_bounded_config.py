import os
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.main import serve
from lmtrain.errors import EXIT_CONFIGURATION, ConfigurationError
from lmtrain.run.compose.bounded_config import require_bounded_files, require_bounded_references
from lmtrain.run.compose.compose import compose_config
from tests.storage.test_foreign_yaml import LAUGHS

DOUBLING = {f"a{i}": f"${{a{i + 1}}}${{a{i + 1}}}" for i in range(40)} | {"a40": "xx"}
NODES = {f"a{i}": {"x": f"${{a{i + 1}}}", "y": f"${{a{i + 1}}}"} for i in range(40)} | {"a40": "xx"}


@pytest.mark.parametrize(
    "config",
    [
        DOUBLING,
        NODES,
        {"z": {"a": "${.b}${.b}", **{k: v.replace("${a", "${.a") for k, v in DOUBLING.items()}, "b": "${.a0}"}},
        {"a": "${b}", "b": "${a}"},
        {"a": "${.a}"},
        {f"a{i}": f"${{a{i + 1}}}" for i in range(100)},
    ],
)
def test_references_without_bound_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"written out|circle"):
        require_bounded_references(config)


def test_our_own_config_is_bounded() -> None:
    require_bounded_references(compose_config([]))
    require_bounded_references({"a": "${b.c} ${oc.env:HOME}", "b": {"c": 1, "d": "${.c}", "e": ["${..a}"]}})


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (LAUGHS, "is no option: it has more than"),
        ("z: " + "[" * 1500, "is no option: it is nested"),
        ("z:\n" + "".join(f"  {name}: {text.replace('{a', '{z.a')}\n" for name, text in DOUBLING.items()), "too large"),
        ("z: [", "is no YAML"),
    ],
)
def test_an_option_that_is_a_bomb_is_told_in_a_line(
    text: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    words = ["--config-dir", str(tmp_path), "experiment=mine", "data=synthetic"]
    assert serve("train", words, program="train.py") == EXIT_CONFIGURATION
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"# @package _global_\nz: \xff\n", "is no option: 'utf-8' codec can't decode byte 0xff"),
        (b"# @package _global_\nseed: " + b"7" * 6000, "is no option: Exceeds the limit (4300 digits)"),
        (None, "is no option: it is a pipe, a socket or a device; correct or remove it."),
    ],
)
def test_an_option_that_cannot_be_read_is_named_with_the_reason(
    content: bytes | None, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    option = tmp_path / "experiment" / "mine.yaml"
    os.mkfifo(option) if content is None else option.write_bytes(content)
    for verb in ("train", "plan"):
        words = ["--config-dir", str(tmp_path), "experiment=mine", "data=synthetic"]
        assert serve(verb, words, program="lmtrain") == EXIT_CONFIGURATION
        error = capsys.readouterr().err
        assert error.startswith(f"lmtrain: {option} {part}")
        assert error.count("\n") == 1


def test_other_files_of_the_folder_are_left_to_hydra(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_bytes(b"\xff")
    require_bounded_files(tmp_path)


def test_a_word_nested_without_bound_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    word = f"model={'{a: ' * 3000}1{'}' * 3000}"
    assert serve("plan", [word], program="lmtrain plan") == EXIT_CONFIGURATION
    assert capsys.readouterr().err == "lmtrain: model: its value is nested more than 100 deep; write it flat.\n"
