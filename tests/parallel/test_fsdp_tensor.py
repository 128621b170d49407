"""Two pairs that compute together and shard their parts over one another, held to a single process."""

from pathlib import Path

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.parallel.fsdp_tensor import fsdp_tensor, fsdp_tensor_facts
from tests.parallel.strategy_parity import Found, require_same, require_same_end, trained

CASES = [
    {"model": "nano", "optimizer": "muon", "loss": "plain"},
    {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True},
    {"model": "llama", "optimizer": "muon", "loss": "chunked"},
]
GRID = {"strategy": "fsdp_tensor", "settings": {"tensor_size": 2}, "micro_batch_sequences": 2}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Found]]:
    """All trainings in one process, a whole step at once; the first saves after its first step."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = [{"strategy": "single", "micro_batch_sequences": 8} | case for case in CASES]
    return folder, trained(folder, [cases[0] | {"save_to": "whole"}, *cases[1:]])


@pytest.fixture(scope="module")
def grid(alone: tuple[Path, list[Found]]) -> list[Found]:
    """All on two pairs, with two micro-steps a step, the second with a scatter at each of them.

    And the first again: from the whole state, then from shards.
    """
    often = {"tensor_size": 2, "reduce_every_micro_step": True}
    settings = [GRID["settings"], often, GRID["settings"]]
    cases = [{**GRID, **case, "settings": one} for case, one in zip(CASES, settings, strict=True)]
    folder = alone[0]
    again = [
        cases[0] | {"resume": "whole", "steps": 2, "save_to": "grid", "save_at": 2},
        CASES[0] | {"strategy": "hsdp", "settings": {"shard_size": 2}, "resume": "grid"},
    ]
    return trained(folder, [*cases, *again], num_ranks=4)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES)))
def test_losses_gradients_and_weights_are_those_of_one_process(
    grid: list[Found], alone: tuple[Path, list[Found]], case: int
) -> None:
    require_same(grid[case], alone[1][case])


@pytest.mark.distributed
def test_a_checkpoint_comes_from_one_process_and_goes_on_in_shards_alone(
    grid: list[Found], alone: tuple[Path, list[Found]]
) -> None:
    require_same_end(grid[-1], alone[1][0])


def test_ranks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"strategy.shard_size=3 does not divide 4 ranks .* valid: 2"):
        fsdp_tensor(num_ranks=8, compute_dtype=torch.float32, tensor_size=2, shard_size=3)


def test_parts_are_sharded_over_all_ranks_that_hold_the_same() -> None:
    assert fsdp_tensor_facts(tensor_size=8).num_shards(64) == 8
    assert fsdp_tensor_facts(tensor_size=8, shard_size=4).num_shards(64) == 4
