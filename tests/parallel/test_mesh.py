"""Groups of several kinds in one mesh of four ranks, compared with a single process and resumed elsewhere.

One process takes the micro-batches of all data ranks at once: the penalties of routers are of each by itself.
"""

from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.parallel.mesh import mesh_facts
from tests.parallel.strategy_parity import CLIP, Found, require_same, require_same_end, trained

STAGES: dict[str, Any] = {"pipeline_size": 2}
PARTS: dict[str, Any] = {"pipeline_size": 2, "num_chunks": 2}
GPIPE: dict[str, Any] = {"pipeline_size": 2, "schedule": "gpipe"}
TWO, FOUR = {"micro_batch_sequences": 2}, {"micro_batch_sequences": 4}
# A case's model and sizes; the rest of four ranks are shards with rows of their own.
CASES: list[dict[str, Any]] = [
    {"model": "qwen", "optimizer": "adamw", "loss": "chunked", "settings": STAGES, **TWO},  # tied
    {"model": "nano", "optimizer": "muon", "loss": "chunked", "settings": STAGES, **TWO, "recompute": True},
    {"model": "latent", "optimizer": "adamw", "loss": "chunked", "settings": GPIPE, **FOUR},  # experts
    {"model": "delta", "optimizer": "adamw", "loss": "plain", "settings": PARTS | {"schedule": "zbv"}, **TWO},
    {
        "model": "gpt2",
        "optimizer": "adamw",
        "loss": "plain",
        "settings": GPIPE | {"reduce_every_micro_step": True},
        **TWO,
    },
    {"model": "mixtral", "optimizer": "adamw", "loss": "plain", "settings": GPIPE | {"expert_size": 2}, **FOUR},
    {
        "model": "mixtral",
        "optimizer": "adamw",
        "loss": "plain",
        "settings": {"context_size": 2, "expert_size": 2},
        **FOUR,
    },
    {"model": "qwen", "optimizer": "muon", "loss": "plain", "settings": STAGES | {"tensor_size": 2}, **TWO},
    {"model": "latent", "optimizer": "adamw", "loss": "chunked", "settings": STAGES | {"tensor_size": 2}, **TWO},
    {"model": "mamba", "optimizer": "muon", "loss": "chunked", "settings": PARTS | {"tensor_size": 2}, **TWO},
    {"model": "nano", "optimizer": "adamw", "loss": "chunked", "settings": STAGES | {"context_size": 2}, **TWO},
    {"model": "mixtral", "optimizer": "adamw", "loss": "plain", "settings": STAGES | {"context_size": 2}, **TWO},
]


def alone_of(case: dict[str, Any]) -> dict[str, Any]:
    sizes = case["settings"]
    num_data_ranks = 4 // (sizes.get("pipeline_size", 1) * sizes.get("tensor_size", 1) * sizes.get("context_size", 1))
    micro = case["micro_batch_sequences"] * num_data_ranks
    return {name: case[name] for name in ("model", "optimizer", "loss")} | {
        "strategy": "single",
        "micro_batch_sequences": micro,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("mesh")


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Found]:
    """All trainings in one process."""
    return trained(folder, [alone_of(case) for case in CASES])


@pytest.fixture(scope="module")
def in_mesh(folder: Path, alone: list[Found]) -> list[Found]:
    """All on four ranks; the case with tensor groups saves its first step, and goes on from it with shards instead."""
    assert alone
    cases = [{"strategy": "mesh", **case} for case in CASES]
    cases[7] |= {"save_to": "tensor"}
    again = CASES[7] | {"strategy": "mesh", "settings": STAGES, "resume": "tensor"}
    return trained(folder, [*cases, again], num_ranks=4)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES)))
def test_losses_gradients_and_weights_are_those_of_one_process(
    in_mesh: list[Found], alone: list[Found], case: int
) -> None:
    require_same(in_mesh[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_a_checkpoint_continues_in_another_mesh_and_in_one_process(
    folder: Path, in_mesh: list[Found], alone: list[Found]
) -> None:
    require_same_end(in_mesh[-1], alone[7])
    (single,) = trained(folder, [alone_of(CASES[7]) | {"resume": "tensor"}])
    require_same_end(single, alone[7])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"pipeline_size": 2, "tensor_size": 3},
            r"tensor_size=3 does not divide 8 ranks.*leave 4\)\. Did you mean 2\?",
        ),
        (
            {"tensor_size": 2, "context_size": 2},
            r"strategy\.tensor_size: must be 1 with strategy\.context_size=2, got 2",
        ),
        ({"replicate_size": 2, "shard_size": 2}, r"strategy\.replicate_size: .*Did you mean 4\?"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mesh_facts(**sizes).require_ranks(8)
