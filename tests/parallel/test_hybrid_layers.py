"""Layers of one branch, with a state or without, on two ranks of FSDP, held to a single process."""

from pathlib import Path

import pytest

from tests.parallel.strategy_parity import CLIP, Found, require_same, trained

STEP = {"model": "mamba", "optimizer": "muon", "loss": "plain"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The training in one process."""
    case = STEP | {"strategy": "single", "micro_batch_sequences": 8}
    return trained(tmp_path_factory.mktemp("alone"), [case])[0]


@pytest.mark.distributed
def test_fsdp_trains_as_one_process(alone: Found, tmp_path: Path) -> None:
    case = STEP | {"strategy": "fsdp", "recompute": True, "micro_batch_sequences": 2}
    require_same(trained(tmp_path, [case], num_ranks=2)[0], alone)
    assert min(alone["norms"].values()) > CLIP, "every step is clipped"
