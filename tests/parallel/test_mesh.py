"""Groups of several kinds in one mesh of four ranks, compared with a single process and resumed elsewhere.

One process takes the micro-batches of all data ranks at once: the penalties of routers are of each by itself.
"""

from pathlib import Path
from typing import Any

import pytest

from lmtrain.accounting.options.strategy import Stream
from lmtrain.errors import ConfigurationError
from lmtrain.parallel.mesh import mesh_facts
from tests.parallel.strategy_parity import CLIP, Found, require_same, require_same_end, trained

STAGES: dict[str, Any] = {"pipeline_size": 2}
SEQUENCES: dict[str, Any] = {"tensor_size": 2, "context_size": 2}
PARTS: dict[str, Any] = {"pipeline_size": 2, "num_chunks": 2}
GPIPE: dict[str, Any] = {"pipeline_size": 2, "schedule": "gpipe"}
TWO, FOUR = {"micro_batch_sequences": 2}, {"micro_batch_sequences": 4}
# A case's model and sizes; the rest of four ranks are shards with rows of their own.
CASES: list[dict[str, Any]] = [
    {"model": "qwen", "optimizer": "adamw", "loss": "chunked", "settings": STAGES, **TWO},  # tied
    {"model": "nano", "optimizer": "muon", "loss": "chunked", "settings": STAGES, **TWO, "recompute": True},
    {"model": "delta", "optimizer": "adamw", "loss": "plain", "settings": PARTS | {"schedule": "zbv"}, **TWO},
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
    {
        "model": "mixtral",
        "optimizer": "adamw",
        "loss": "plain",
        "settings": {"tensor_size": 2, "expert_size": 2},
        **FOUR,
        "notes_messages": True,
    },
    {
        "model": "qwen",
        "optimizer": "adamw",
        "loss": "chunked",
        "settings": SEQUENCES,
        **TWO,
        "notes_messages": True,
    },
    {"model": "nano_4", "optimizer": "muon", "loss": "plain", "settings": SEQUENCES, **TWO, "recompute": True},
    {"model": "latent", "optimizer": "adamw", "loss": "chunked", "settings": SEQUENCES, **FOUR},  # gathered keys
]
# Cases that save their first step, and the sizes that go on from it.
GO_ON: dict[int, dict[str, Any]] = {5: STAGES, 9: {"replicate_size": 2, "expert_size": 2}, 11: {"context_size": 2}}
OF_COUNTS = 4 * 8  # bytes of a layer's tokens by expert, sent first


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
    """All on four ranks; cases with tensor groups save their first step, and go on from it with shards instead."""
    assert alone
    cases = [{"strategy": "mesh", **case} for case in CASES]
    again = [CASES[case] | {"strategy": "mesh", "settings": others, **TWO} for case, others in GO_ON.items()]
    for case, resumed in zip(GO_ON, again, strict=True):
        cases[case] |= {"save_to": f"saved{case}"}
        resumed |= {"resume": f"saved{case}"}
    return trained(folder, [*cases, *again], num_ranks=4)


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
    single = trained(folder, [alone_of(CASES[case]) | {"resume": f"saved{case}"} for case in GO_ON])
    for case, meshed, plain in zip(GO_ON, in_mesh[len(CASES) :], single, strict=True):
        require_same_end(meshed, alone[case])
        require_same_end(plain, alone[case])


@pytest.mark.distributed
def test_each_rank_of_a_tensor_group_sends_all_rows_to_their_experts(in_mesh: list[Found]) -> None:
    """A rank receives as many as its experts are chosen; those that it sends first are known."""
    micro = 4 * 16  # tokens
    stream = Stream(num_tokens=micro, num_bytes=0, num_layers=2, expert_bytes=micro * 16 * 4 * 2 * 2)
    (planned,) = (
        each
        for each in mesh_facts(tensor_size=2, expert_size=2).collectives(
            num_ranks=4, gathered=0.0, num_gradients=0.0, micro_steps=1, stream=stream
        )
        if each.group == "expert groups"
    )
    for messages in in_mesh[9]["sent"][1:]:
        first, _, *others = [each for each in messages if each.kind == "exchange" and each.num_bytes > OF_COUNTS]
        assert first.sent == planned.num_bytes / planned.num_gathers
        assert 2 + len(others) == planned.num_gathers


@pytest.mark.distributed
def test_a_tensor_group_sends_a_slice_of_the_sequence_and_a_context_group_its_share_of_heads(
    in_mesh: list[Found],
) -> None:
    """And one message each with small parameters' gradients and numbers of a norm."""
    micro = 2 * 16  # tokens
    stream = Stream(
        num_tokens=micro,
        num_bytes=micro * 16 * 4,
        num_layers=2,
        attention_bytes=micro * 4 * 16 * 4 * 2,
        num_kv_heads=4,
    )
    groups = {
        each.group: each
        for each in mesh_facts(**SEQUENCES).collectives(
            num_ranks=4, gathered=0.0, num_gradients=0.0, micro_steps=4, stream=stream
        )
    }
    for messages in in_mesh[10]["sent"][1:]:
        exchanged = [each for each in messages if each.kind == "exchange"]
        assert sum(each.sent for each in exchanged) == groups["context groups"].num_bytes
        assert len(exchanged) == 4 * 2 * 4, "of two layers and four micro-steps"
        assert {each.stride for each in exchanged} == {groups["context groups"].stride}
        *moves, of_parts = (each for each in messages if (each.num_ranks, each.stride) == (2, 1) and each.num_bytes > 4)
        assert sum(each.sent for each in moves) == groups["tensor groups"].gathered_bytes
        assert of_parts.kind == "reduce"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"pipeline_size": 2, "tensor_size": 3},
            r"tensor_size=3 does not divide 8 ranks.*leave 4\)\. Did you mean 2\?",
        ),
        ({"replicate_size": 2, "shard_size": 2}, r"strategy\.replicate_size: .*Did you mean 4\?"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mesh_facts(**sizes).require_ranks(8)
