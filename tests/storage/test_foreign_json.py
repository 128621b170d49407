import os
from pathlib import Path

import pytest

from lmtrain.storage import foreign_json


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 101 + "]" * 101, b"[" * 101 + b"]" * 101])
def test_a_depth_bomb_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        foreign_json.parse(text)


def test_wide_and_ordinary_content_passes() -> None:
    assert foreign_json.parse("[" * 100 + "]" * 100)
    assert foreign_json.parse('{"a": ["[[["], "b": ' + str([{}] * 1000) + "}")["a"] == ["[[["]


@pytest.mark.parametrize("text", [b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', '["\\uDFFF"]'])
def test_what_is_no_unicode_is_a_value_error(text: str | bytes) -> None:
    assert foreign_json.parse('"\\ud83d\\ude00"'.encode("utf-16")) == "\U0001f600"  # a whole pair
    with pytest.raises(ValueError, match="utf-8"):
        foreign_json.parse(text)


def test_a_file_too_large_is_a_value_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert foreign_json.read(tmp_path / "a") == 12345
    with pytest.raises(ValueError, match="more than 4 bytes"):
        foreign_json.read_bytes(tmp_path / "a", max_bytes=4)


def test_a_pipe_is_no_file_to_wait_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OSError, match="a pipe, a socket or a device"):
        foreign_json.read(tmp_path / "a")
