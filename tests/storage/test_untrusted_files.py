"""Hostile JSON, YAML, pickles and tensors are refused in bounds."""

import itertools
import os
import pickle
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.storage import foreign_json, foreign_yaml
from lmtrain.storage.bounded_memory import bounded_memory
from lmtrain.storage.damage import refuse_damage
from lmtrain.storage.plain_values import load_plain, require_bounded
from tests.hostile_pickles import Command


def test_what_asks_for_more_gets_a_memory_error_and_the_limit_is_as_before():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), bounded_memory(more_bytes=1 << 28), bounded_memory():
        np.empty(1 << 32, np.uint8)  # more than a process keeps free
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert np.empty(1 << 29, np.uint8).nbytes == 1 << 29


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_what_python_writes_is_bounded(protocol: int) -> None:
    one: dict[str, Any] = {"a": [1, 2.5, None, True, 1 << 200, "ä" * 300, b"b" * 300, bytearray(9)], "b": (1, (2,))}
    require_bounded(pickle.dumps([one, one, dict, 10**6 * "x"], protocol))


@pytest.mark.parametrize(
    "attack",
    [
        b"\x80\x02Nr\xff\xff\xff\xff.",  # LONG_BINPUT
        b"\x80\x02Np4294967295\n.",  # PUT
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # BYTEARRAY8
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",  # BINBYTES8
        b"\x80\x02X\xff\xff\xff\x7f.",  # BINUNICODE
        b"\x80\x02\xff.",
        b"\x80\x02cposix\nsystem",
        b"",
    ],
)
def test_a_pickle_that_asks_for_more_than_itself_is_refused(attack: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        require_bounded(attack)


@pytest.mark.parametrize(
    "problem", [KeyError("a"), TypeError("a\nb"), OverflowError(), RecursionError("a"), EOFError()]
)
def test_an_error_of_values_is_one_line_about_the_file(problem: Exception) -> None:
    with (
        pytest.raises(DataError, match=r"^x/y is damaged \(.+\); write it again\.$"),
        refuse_damage(Path("x/y"), fix="write it again"),
    ):
        raise problem


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 101 + "]" * 101, b"[" * 101 + b"]" * 101])
def test_a_depth_bomb_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        foreign_json.parse(text)


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


STEPS = itertools.pairwise("abcdefghi")
LAUGHS = "a: &a [x]\n" + "\n".join(f"{to}: &{to} [{', '.join([f'*{of}'] * 9)}]" for of, to in STEPS)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[" * 1500, "nested more than 100 deep"),
        ("a: &a [*a]", "nested more than 100 deep"),
        (LAUGHS, "more than 100,000 values"),
        (f"a: &a [{','.join('x' * 1000)}]\nb: [{','.join(['*a'] * 200)}]", "more than 100,000 values"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: [", "expected"),
        ("\x00", "special characters"),
    ],
)  # fmt: skip
def test_a_bomb_or_another_kind_of_yaml_is_a_value_error(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        foreign_yaml.parse(text)


def test_tensors_and_plain_values_are_read(tmp_path):
    torch.save({"weight": torch.arange(3), "betas": (0.9, 0.95), "step": 3}, tmp_path / "state.pt")
    read = load_plain(tmp_path / "state.pt", map_location="cpu")
    assert read["weight"].tolist() == [0, 1, 2]
    assert (read["betas"], read["step"]) == ((0.9, 0.95), 3)


# torch.save writes protocol 2, in which subprocess is called commands.
def test_a_call_is_named_and_not_made(tmp_path):
    torch.save({"weight": Command(tmp_path / "witness")}, tmp_path / "state.pt")
    with pytest.raises(EnvironmentProblem, match=r"state\.pt holds more than .*: it names commands\.call; use"):
        load_plain(tmp_path / "state.pt")
    assert not (tmp_path / "witness").exists()


def _anew(path, *, pickled=None, compression=zipfile.ZIP_STORED):
    """Write a file of torch again, with another pickle or compressed."""
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(name, pickled if pickled and name.endswith("data.pkl") else content)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"compression": zipfile.ZIP_DEFLATED}, "its entry state/data.pkl is compressed"),
        ({"pickled": b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."}, "names builtins.bytearray"),
        ({"pickled": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."}, "nested more than 100 deep"),
        ({"pickled": b"\x80\x02("}, "cannot be read"),
    ],
)
def test_a_few_bytes_that_ask_for_gigabytes_are_refused(tmp_path, changes, part):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "state.pt")
    _anew(tmp_path / "state.pt", **changes)
    with pytest.raises(EnvironmentProblem, match=part):
        load_plain(tmp_path / "state.pt", mmap=True)
