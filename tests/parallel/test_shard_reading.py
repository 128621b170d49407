import pickle
import subprocess
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as sharded_checkpoint

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.shard_reading import METADATA, read_metadata, read_shards
from tests.hostile_pickles import dotted


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_writes_is_read(tmp_path):
    state: dict[str, Any] = {
        "w": torch.randn(8, 8),
        "step": 3,
        "nested": {"a": torch.ones(3, dtype=torch.bfloat16)},
        "name": "x",
    }
    sharded_checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    read: dict[str, Any] = {
        "w": torch.zeros(8, 8),
        "step": 0,
        "nested": {"a": torch.zeros(3, dtype=torch.bfloat16)},
        "name": "",
    }
    read_shards(read, tmp_path, alone=True)
    assert (read["step"], read["name"]) == (3, "x")
    assert torch.equal(read["w"], state["w"])
    assert torch.equal(read["nested"]["a"], state["nested"]["a"])


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
        read_metadata(tmp_path)
    assert not witness.exists()


def test_a_dotted_name_behind_a_trusted_module_is_refused(tmp_path):
    witness = tmp_path / "witness"
    pickle.loads(dotted(witness))
    assert witness.exists(), "the pickle does what a guard is for"
    witness.unlink()
    (tmp_path / METADATA).write_bytes(dotted(witness))
    with pytest.raises(EnvironmentProblem, match=r"names torch\.distributed.*os\.system, which no checkpoint"):
        read_metadata(tmp_path)
    assert not witness.exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({})])
def test_damage_is_told(tmp_path, content):
    (tmp_path / METADATA).write_bytes(content)
    with pytest.raises(EnvironmentProblem, match=r"cannot be read safely|holds a dict, no metadata"):
        read_metadata(tmp_path)
