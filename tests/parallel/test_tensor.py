"""Two ranks that compute each product together, and two such pairs, held to a single process and resumed elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lmtrain.accounting.options.strategy import Stream
from lmtrain.errors import ConfigurationError
from lmtrain.losses.chunked import ChunkedCrossEntropy, chunked_total
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.delta_net import GatedDelta
from lmtrain.models.head import LossTotal, OutputHead
from lmtrain.models.llama import Llama
from lmtrain.models.mamba import Mamba2
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.parallel.mesh import mesh_facts
from lmtrain.parallel.tensor_parallel import require_cuts, vocabulary_shard
from tests.parallel.strategy_parity import CLIP, Found, require_same, require_same_end, trained

CASES = [
    {"model": "llama", "optimizer": "muon", "loss": "plain"},
    {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True, "notes_messages": True},
    {"model": "qwen", "optimizer": "adamw", "loss": "plain", "notes_messages": True},
    {"model": "nano", "optimizer": "muon", "loss": "chunked", "recompute": True},
    {"model": "wide", "optimizer": "adamw", "loss": "plain", "recompute": True, "compile": "captured"},
]
# One micro-batch, without a gradient so near the border of two fp8 numbers that 1e-7 decides between them: two
# micro-batches have one, and the 2% of a row by which it moves grow from layer to layer.
CASES.append(CASES[-1] | {"precision": "fp8", "micro_batch_sequences": 8})
ALONE = {"strategy": "single", "micro_batch_sequences": 8}
PAIR = {"strategy": "tensor", "settings": {"tensor_size": 2}, "micro_batch_sequences": 4}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """All trainings in one process, a whole step at once."""
    folder = tmp_path_factory.mktemp("alone")
    plain: list[dict[str, Any]] = [case | {"compile": "none", "recompute": False} for case in CASES]
    plain[-1] |= {"precision": "fp8 in halves"}  # a scale for each rank's part
    return trained(folder, [ALONE | case for case in plain])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def pair(folder: Path) -> list[Found]:
    """All on a group of two ranks, with two micro-steps a step; the first again, from its first step on."""
    cases = [PAIR | case for case in CASES]
    return trained(folder, [cases[0] | {"save_to": "pair"}, *cases[1:], cases[0] | {"resume": "pair"}], num_ranks=2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES)))
def test_losses_gradients_and_weights_are_those_of_one_process(
    pair: list[Found], alone: list[Found], case: int
) -> None:
    require_same(pair[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_two_pairs_with_tokens_of_their_own_train_as_one_process(folder: Path, alone: list[Found]) -> None:
    (pairs,) = trained(folder, [PAIR | CASES[0] | {"micro_batch_sequences": 2}], num_ranks=4)
    require_same(pairs, alone[0])


@pytest.mark.distributed
def test_a_resumed_pair_goes_on_to_the_last_bit(pair: list[Found]) -> None:
    straight, resumed = pair[0], pair[-1]
    assert resumed["losses"] == {step: straight["losses"][step] for step in (2, 3)}
    for name, weight in straight["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name


@pytest.mark.distributed
def test_one_process_goes_on_from_a_pair(folder: Path, pair: list[Found], alone: list[Found]) -> None:
    assert pair
    (single,) = trained(folder, [CASES[0] | ALONE | {"resume": "pair"}])
    require_same_end(single, alone[0])


@pytest.mark.distributed
@pytest.mark.parametrize(("case", "share_again"), [(2, 0.0), (1, 1.0)])
def test_a_step_sends_what_its_facts_say(pair: list[Found], case: int, share_again: float) -> None:
    """And one message each with small parameters' gradients, the step's loss, tokens and FLOPs, and its norm."""
    facts = {"gathered": 0.0, "num_gradients": 0.0, "micro_steps": 2}
    stream = Stream(num_tokens=64, num_bytes=64 * 16 * 4, num_layers=2, share_again=share_again)
    (group,) = mesh_facts(option="tensor", tensor_size=2).collectives(num_ranks=2, stream=stream, **facts)
    *messages, of_parts, of_loss, of_norm = pair[case]["sent"][-1]
    assert of_norm.num_bytes == 4
    assert sum(each.sent for each in messages) == group.num_bytes
    assert (of_parts.kind, of_loss.num_bytes) == ("reduce", 24)
    assert of_parts.num_bytes < 2000, "norms and biases, not matrices"


CASES_FSDP_TENSOR = [
    {"model": "nano", "optimizer": "muon", "loss": "plain"},
    {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True},
    {"model": "llama", "optimizer": "muon", "loss": "chunked"},
]
GRID = {"strategy": "fsdp_tensor", "settings": {"tensor_size": 2}, "micro_batch_sequences": 2}


@pytest.fixture(scope="module")
def alone_fsdp_tensor(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Found]]:
    """All trainings in one process, a whole step at once; the first saves after its first step."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = [{"strategy": "single", "micro_batch_sequences": 8} | case for case in CASES_FSDP_TENSOR]
    return folder, trained(folder, [cases[0] | {"save_to": "whole"}, *cases[1:]])


@pytest.fixture(scope="module")
def grid(alone_fsdp_tensor: tuple[Path, list[Found]]) -> list[Found]:
    """All on two pairs, with two micro-steps a step, the second with a scatter at each of them.

    And the first again: from the whole state, then from shards.
    """
    often = {"tensor_size": 2, "reduce_every_micro_step": True}
    settings = [GRID["settings"], often, GRID["settings"]]
    cases = [{**GRID, **case, "settings": one} for case, one in zip(CASES_FSDP_TENSOR, settings, strict=True)]
    folder = alone_fsdp_tensor[0]
    again = [
        cases[0] | {"resume": "whole", "steps": 2, "save_to": "grid", "save_at": 2},
        CASES_FSDP_TENSOR[0] | {"strategy": "hsdp", "settings": {"shard_size": 2}, "resume": "grid"},
    ]
    return trained(folder, [*cases, *again], num_ranks=4)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES_FSDP_TENSOR)))
def test_losses_gradients_and_weights_are_those_of_one_process_fsdp_tensor(
    grid: list[Found], alone_fsdp_tensor: tuple[Path, list[Found]], case: int
) -> None:
    require_same(grid[case], alone_fsdp_tensor[1][case])


@pytest.mark.distributed
def test_a_checkpoint_comes_from_one_process_and_goes_on_in_shards_alone(
    grid: list[Found], alone_fsdp_tensor: tuple[Path, list[Found]]
) -> None:
    require_same_end(grid[-1], alone_fsdp_tensor[1][0])


DELTA = GatedDelta(num_key_heads=2, num_value_heads=2, key_width=4, value_width=4)
MAMBA = Mamba2(num_heads=2, head_width=4, state_width=4)


def llama(**settings: object) -> LanguageModel:
    sizes = {"width": 24, "num_layers": 1, "num_heads": 6, "feed_forward_width": 30, "vocab_size": 31}
    with torch.device("meta"):
        return Llama(**{**sizes, "max_context_tokens": 8, **settings})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("settings", "num_ranks", "message"),
    [
        ({}, 4, "strategy.tensor_size=4 does not divide model.num_heads=6 into parts. Did you mean 2?"),
        ({"num_kv_heads": 2}, 3, "model.num_kv_heads=2 into parts. Did you mean 2?"),
        ({"num_heads": 4, "feed_forward_width": 30}, 4, "model.feed_forward_width=30 into parts. Did you mean 3?"),
        ({"vocab_size": 5, "num_heads": 4, "feed_forward_width": 8}, 4, "model.vocab_size=5 into parts"),
        ({"recurrent_layers": DELTA, "recurrent_pattern": "R"}, 3, "recurrent_layers.num_key_heads=2 into parts. Did"),
        (
            {"recurrent_layers": MAMBA, "recurrent_pattern": "R", "single_branch_layers": True},
            2,
            "recurrent_layers.num_groups=1 into parts. Did you mean 1?",
        ),
        (
            {"experts": Experts(num_experts=4, num_experts_per_token=2, shared_width=15)},
            2,
            "model.experts.shared_width=15 into parts. Did you mean 1?",
        ),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_what_can(
    settings: dict[str, object], num_ranks: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_cuts(llama(**settings), num_ranks=num_ranks)


VOCAB_SIZE, WIDTH = 13, 6


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCAB_SIZE, WIDTH, generator=generator, requires_grad=True)
    hidden = torch.randn(2, 5, WIDTH, generator=generator, requires_grad=True)
    targets = torch.randint(VOCAB_SIZE, (2, 5), generator=generator)
    targets[1, 2:] = -100
    return weight, hidden, targets


def sharded(loss: CrossEntropy | ChunkedCrossEntropy, soft_cap: float | None) -> tuple[LossTotal, list[torch.Tensor]]:
    weight, hidden, targets = operands()
    assert dist.group.WORLD is not None
    shard = vocabulary_shard(0, dist.group.WORLD)
    total = chunked_total(loss, OutputHead(weight, soft_cap), hidden, targets, shard=shard)
    return total, list(torch.autograd.grad(3 * total.objective, [weight, hidden]))


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("z_loss_weight", [0.0, 0.1])
@pytest.mark.parametrize("chunk_tokens", [None, 3])
def test_sums_and_gradients_are_those_of_plain_cross_entropy(
    soft_cap: float | None, z_loss_weight: float, chunk_tokens: int | None
) -> None:
    weight, hidden, targets = operands()
    plain = CrossEntropy(z_loss_weight=z_loss_weight)
    expected = plain(OutputHead(weight, soft_cap), hidden, targets)
    gradients = torch.autograd.grad(3 * expected.objective, [weight, hidden])
    loss = ChunkedCrossEntropy(z_loss_weight=z_loss_weight, chunk_tokens=chunk_tokens) if chunk_tokens else plain
    total, found = sharded(loss, soft_cap)
    torch.testing.assert_close(list(total), list(expected), rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(found, list(gradients), rtol=2e-6, atol=2e-6)
