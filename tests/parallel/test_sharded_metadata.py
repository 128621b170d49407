import pickle
import subprocess

import pytest
import torch
import torch.distributed.checkpoint as sharded_checkpoint

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.sharded_metadata import METADATA, require_safe_metadata


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_writes_is_safe(tmp_path):
    state = {"w": torch.randn(8, 8), "step": 3, "nested": {"a": torch.ones(3, dtype=torch.bfloat16)}, "name": "x"}
    sharded_checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    require_safe_metadata(tmp_path)


class Calls:
    def __init__(self, function, *arguments):
        self.answer = (function, arguments)

    def __reduce__(self):
        return self.answer


@pytest.mark.parametrize("function", [subprocess.call, eval, torch.load])
def test_a_call_is_refused_and_never_made(tmp_path, function):
    witness = tmp_path / "witness"
    (tmp_path / METADATA).write_bytes(pickle.dumps(Calls(function, f"touch {witness}")))
    with pytest.raises(EnvironmentProblem, match=r"names .*which no checkpoint of ours does"):
        require_safe_metadata(tmp_path)
    assert not witness.exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle"])
def test_damage_is_told(tmp_path, content):
    (tmp_path / METADATA).write_bytes(content)
    with pytest.raises(EnvironmentProblem, match="cannot be read safely"):
        require_safe_metadata(tmp_path)
