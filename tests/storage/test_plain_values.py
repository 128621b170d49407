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
