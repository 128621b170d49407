"""Mixtures of experts on several ranks, compared with one process that has the tokens of all of them."""

from typing import Any

import pytest

from tests.parallel.strategy_parity import CLIP, Found, require_same, trained

BALANCED: list[dict[str, Any]] = [
    {"model": "olmoe", "strategy": "ddp"},
    {"model": "olmoe", "strategy": "fsdp", "recompute": True},
    {"model": "latent", "strategy": "ddp", "recompute": "selective"},
    {"model": "latent", "strategy": "fsdp", "recompute": True, "compile": "captured"},
]
ACCUMULATED = {"model": "olmoe", "strategy": "fsdp", "recompute": True, "micro_batch_sequences": 2, "steps": 1}
STEP = {"optimizer": "adamw", "loss": "plain", "micro_batch_sequences": 4}
NOTED = (1, 2, 4)
EXPERT_LAYERS = {"olmoe": 2, "latent": 2}
NUM_EXPERTS = {"olmoe": 3, "latent": 8}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Both models in one process, with a micro-batch of both ranks' sequences."""
    cases = [STEP | {"model": one, "strategy": "single", "micro_batch_sequences": 8} for one in NUM_EXPERTS]
    return dict(zip(NUM_EXPERTS, trained(tmp_path_factory.mktemp("alone"), cases), strict=True))


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """Each case on two ranks, and one with two micro-steps a step."""
    cases = [STEP | case for case in [*BALANCED, ACCUMULATED]]
    for number in NOTED:
        cases[number] |= {"notes_messages": True}
    return trained(tmp_path_factory.mktemp("balanced"), cases, num_ranks=2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(BALANCED)))
def test_the_balance_loss_is_that_of_all_ranks_tokens(
    balanced: list[Found], alone: dict[str, Found], case: int
) -> None:
    expected = alone[BALANCED[case]["model"]]
    require_same(balanced[case], expected)
    assert min(expected["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_shares_are_averaged_once_a_layer_and_micro_step_where_blocks_are_recomputed_too(
    balanced: list[Found],
) -> None:
    for found, (model, micro_steps) in zip(NOTED, (("olmoe", 1), ("latent", 1), ("olmoe", 2)), strict=True):
        for messages in balanced[found]["sent"]:
            of_shares = [each for each in messages if (each.kind, each.num_bytes) == ("reduce", 4 * NUM_EXPERTS[model])]
            assert len(of_shares) == EXPERT_LAYERS[model] * micro_steps
