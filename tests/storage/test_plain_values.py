import zipfile

import pytest
import torch

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.plain_values import load_plain
from tests.hostile_pickles import Command


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
