"""Layers of one branch, and modules of future tokens, on two ranks of FSDP, held to a single process."""

from pathlib import Path

import pytest
import torch

from tests.parallel.strategy_parity import CLIP, Found, require_same, require_same_end, trained

KINDS = ("mamba", "future")
STEP = {"optimizer": "muon", "loss": "plain"}
ALONE = STEP | {"strategy": "single", "micro_batch_sequences": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture(scope="module")
def sharded(folder: Path) -> list[Found]:
    """Each on two ranks, with a checkpoint after the first step; then the last again, from that checkpoint."""
    sharded = STEP | {"strategy": "fsdp", "recompute": True, "micro_batch_sequences": 2}
    cases = [sharded | {"model": kind, "save_to": kind} for kind in KINDS]
    return trained(folder, [*cases, sharded | {"model": "future", "resume": "future"}], num_ranks=2)


@pytest.fixture(scope="module")
def alone(folder: Path, sharded: list[Found]) -> list[Found]:
    """Each in one process; then from the checkpoint of two ranks."""
    assert sharded
    cases = [ALONE | {"model": kind} for kind in KINDS]
    return trained(folder, [*cases, *({**case, "resume": case["model"]} for case in cases)])


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(KINDS)), ids=KINDS)
def test_fsdp_trains_as_one_process(sharded: list[Found], alone: list[Found], case: int) -> None:
    require_same(sharded[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(KINDS)), ids=KINDS)
def test_one_process_goes_on_from_their_checkpoint(sharded: list[Found], alone: list[Found], case: int) -> None:
    require_same_end(alone[len(KINDS) + case], sharded[case])


@pytest.mark.distributed
def test_ranks_go_on_from_their_checkpoint_to_the_last_bit(sharded: list[Found]) -> None:
    straight, resumed = sharded[-2:]
    assert resumed["losses"] == {step: straight["losses"][step] for step in (2, 3)}
    for name, weight in straight["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name
