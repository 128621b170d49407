"""Checkpoints of right hashes and wrong content: one reader checks what it loads, and refuses in a line."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.plain_values import load_plain, load_state

WEIGHTS = {"a": torch.zeros(2)}
WHOLE = {"state_dict": WEIGHTS, "global_step": 3}


def saved(content: Any, path: Path) -> Path:
    """Save anything by torch."""
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    "content",
    [
        [1],
        {},
        {"state_dict": [1]},
        {"a": torch.zeros(1)},
    ],
)
def test_what_has_no_weights_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"state\.pt is not a checkpoint"):
        load_state(saved(content, tmp_path / "state.pt"))


def legacy_before_a_zip(path: Path) -> None:
    """Put an old pickle, which torch would read, before a harmless zip, which a checker would read."""
    old = io.BytesIO()
    torch.save(WHOLE, old, _use_new_zipfile_serialization=False)
    path.write_bytes(old.getvalue() + path.read_bytes())


def two_lists(path: Path) -> None:
    """Append another zip file: its list is found from the end, the first one's from the start."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as other:
        other.writestr("state/data.pkl", pickle.dumps({}))
    path.write_bytes(path.read_bytes() + content.getvalue())


def compressed(path: Path) -> None:
    """Compress an entry: a few hundred bytes would unpack into gigabytes."""
    with zipfile.ZipFile(path) as opened:
        entries = {entry.filename: opened.read(entry) for entry in opened.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)


def behind_its_list(path: Path) -> None:
    """Put bytes behind the list."""
    path.write_bytes(path.read_bytes() + b"0" * 30)


def pipe(path: Path) -> None:
    """Put a pipe there: reading it would never end."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("attack", [legacy_before_a_zip, two_lists, compressed, behind_its_list, pipe])
def test_what_two_readers_may_see_differently_is_refused(attack: Any, tmp_path: Path) -> None:
    path = saved(WHOLE, tmp_path / "state.pt")
    attack(path)
    with pytest.raises(EnvironmentProblem, match=r"state\.pt (cannot be read|holds more)"):
        load_plain(path)


def test_a_tensor_larger_than_its_memory_is_refused(tmp_path: Path) -> None:
    huge = torch.zeros(1).expand(1 << 20, 1 << 20)
    with pytest.raises(EnvironmentProblem, match="fewer values than its shape"):
        load_plain(saved({"state_dict": {"a": huge}}, tmp_path / "state.pt"))
