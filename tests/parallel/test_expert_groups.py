"""Experts shared out over ranks, compared with one process: softmax router and biases, and DeepSeek's way of routing.

Losses and norms equal to 2e-6 relative, gradients to 2e-6 of their tensor's largest entry, weights to 2e-5 after five
steps, as those of the trail through all strategies.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from lmtrain.accounting.options.strategy import Stream
from lmtrain.errors import ConfigurationError
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import unchanged
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.parallel.activation_checkpoint import every_block
from lmtrain.parallel.experts import expert_layers, require_expert_shares
from lmtrain.parallel.mesh import RankGroups, mesh_facts, shard_blocks
from tests.parallel.parity_run import MODELS, VOCAB_SIZE
from tests.parallel.sent import Sent
from tests.parallel.strategy_parity import CLIP, RELATIVE, Found, require_same_end, trained
from tests.ranks import on_ranks

STEP = {"loss": "plain", "steps": 5}
MIXTRAL: dict[str, Any] = {"model": "mixtral", "optimizer": "adamw"}
DEEPSEEK: dict[str, Any] = {"model": "latent", "optimizer": "muon"}
UNBALANCED: dict[str, Any] = {"model": "delta", "optimizer": "adamw"}  # equal in micro-batches of any size
COPIES = {"replicate_size": 2, "expert_size": 2}
OF_WEIGHTS = 2e-5
OF_COUNTS = 4 * 8  # bytes of a layer's tokens by expert, sent first
OF_GRADIENTS = 2e-6


def shared_out(expert_size: int, num_ranks: int) -> dict[str, Any]:
    settings = {"expert_size": expert_size}
    return STEP | {"strategy": "fsdp", "settings": settings, "micro_batch_sequences": 8 // num_ranks}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Found]:
    """Each in one process, a whole step at once."""
    whole = STEP | {"strategy": "single", "micro_batch_sequences": 8}
    return trained(folder, [whole | case for case in (MIXTRAL, DEEPSEEK, UNBALANCED)])


@pytest.fixture(scope="module")
def pair(folder: Path) -> list[Found]:
    """Each on a group of two, the second saved in its second step, the third with four micro-steps a step."""
    in_micro_steps = UNBALANCED | {"micro_batch_sequences": 1}
    cases = [MIXTRAL | {"recompute": True}, DEEPSEEK | {"save_to": "pair", "save_at": 2}, in_micro_steps]
    return trained(folder, [shared_out(2, 2) | case for case in cases], num_ranks=2)


@pytest.fixture(scope="module")
def four(folder: Path, pair: list[Found]) -> list[Found]:
    """Two groups of two, one of four, and one of four that goes on from the pair's checkpoint and saves its own.

    Then the two groups as copies of the model, and the copies from the pair's checkpoint.
    """
    assert pair
    copies = shared_out(2, 4) | {"strategy": "mesh", "settings": COPIES}
    cases = [
        shared_out(2, 4) | MIXTRAL,
        shared_out(4, 4) | MIXTRAL | {"recompute": "selective"},
        shared_out(4, 4) | DEEPSEEK | {"resume": "pair", "save_to": "four", "save_at": 4},
        copies | MIXTRAL | {"notes_messages": True},
        copies | DEEPSEEK | {"resume": "pair"},
    ]
    return trained(folder, cases, num_ranks=4)


def require_same(found: Found, expected: Found) -> None:
    for kind in ("losses", "norms"):
        assert found[kind] == pytest.approx(expected[kind], rel=5 * RELATIVE), kind
    require_same_end(found, expected, atol=OF_WEIGHTS)
    for name, gradient in found["gradients"].items():
        wanted = expected["gradients"][name]
        difference = (gradient - wanted).abs().max().item()
        assert difference <= max(OF_GRADIENTS * wanted.abs().max().item(), 1e-8), f"gradient of {name}"
    assert min(expected["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
@pytest.mark.parametrize("case", [0, 1, 2])
def test_a_pair_trains_as_one_process(pair: list[Found], alone: list[Found], case: int) -> None:
    require_same(pair[case], alone[case])


@pytest.mark.distributed
@pytest.mark.parametrize("case", [0, 1, 3])
def test_two_pairs_and_a_group_of_four_train_as_one_process(four: list[Found], alone: list[Found], case: int) -> None:
    require_same(four[case], alone[0])


@pytest.mark.distributed
def test_copies_of_experts_send_what_their_facts_say(four: list[Found]) -> None:
    """To a hundredth: FSDP pads a row of 301 for two shards. The norm's numbers are left out."""
    sizes = {name: (weight.numel(), ".feed_forward." in name) for name, weight in four[3]["weights"].items()}
    num = sum(size for size, _ in sizes.values())
    of_experts = sum(size for name, (size, is_inner) in sizes.items() if is_inner and "router" not in name)
    *_, copies = mesh_facts(**COPIES).collectives(
        num_ranks=4,
        gathered=4 * num,
        num_gradients=num,
        micro_steps=1,
        stream=Stream(num_tokens=0, num_bytes=0, num_layers=2),
        share_of_experts=of_experts / num,
    )
    for messages in four[3]["sent"][1:]:
        sent = [each.sent for each in messages if each.kind == "reduce" and each.stride == 2 and each.num_bytes > 4]
        assert sum(sent) == pytest.approx(copies.reduced_bytes, rel=0.01)
        assert 2 * len(sent) == copies.num_reductions


@pytest.mark.distributed
def test_a_checkpoint_goes_on_with_other_groups_and_without(
    folder: Path, four: list[Found], alone: list[Found]
) -> None:
    assert four[2]["losses"] == pytest.approx({step: alone[1]["losses"][step] for step in (3, 4, 5)}, rel=5 * RELATIVE)
    require_same_end(four[2], alone[1], atol=OF_WEIGHTS)
    require_same_end(four[4], alone[1], atol=OF_WEIGHTS)
    whole = STEP | DEEPSEEK | {"strategy": "single", "micro_batch_sequences": 8, "resume": "four"}
    (found,) = trained(folder, [whole])
    require_same_end(found, alone[1], atol=OF_WEIGHTS)


def small(*, num_experts_per_token: int = 1) -> Llama:
    model = Llama(
        vocab_size=31,
        max_context_tokens=8,
        width=8,
        num_layers=2,
        num_heads=2,
        feed_forward_width=8,
        experts=Experts(
            num_experts=4,
            num_experts_per_token=num_experts_per_token,
            scores="sigmoid",
            bias_step=0.0,
            shared_width=8,
        ),
    )
    model.initialize_weights(torch.Generator().manual_seed(3))
    return model


def cut_in_two(model: Llama) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    spread = mesh_facts(option="fsdp", expert_size=2)
    shard_blocks(model, RankGroups(spread, mesh), spread=spread, compute_dtype=torch.float32)


@pytest.mark.distributed
def test_experts_without_a_token_and_one_rank_with_all(tmp_path: Path) -> None:
    on_ranks(_all_to_one_expert, folder=tmp_path)


def _all_to_one_expert(rank: int) -> None:
    """Each expert in turn has every token of both ranks; then each rank chooses its own experts, or the other's."""
    ids = torch.randint(0, 31, (2, 9), generator=torch.Generator().manual_seed(1))
    for favoured in ([0, 0], [3, 3], [0, 3], [3, 0]):
        whole, cut = small(), small()
        cut_in_two(cut)
        for of_rank, expert in enumerate(favoured):
            _favour(whole, expert)
            _loss(whole, ids[of_rank : of_rank + 1]).div(2).backward()
        _favour(cut, favoured[rank])
        _loss(cut, ids[rank : rank + 1]).backward()
        expected = dict(whole.named_parameters())
        for name, parameter in cut.named_parameters():
            gradient = parameter.grad
            assert isinstance(gradient, DTensor), name
            torch.testing.assert_close(gradient.full_tensor(), expected[name].grad, rtol=2e-6, atol=1e-7)


def _favour(model: Llama, *experts: int) -> None:
    for layer in expert_layers(model):
        assert layer.choice_bias is not None
        layer.choice_bias.zero_()[list(experts)] = 10.0


def _loss(model: Llama, ids: torch.Tensor) -> torch.Tensor:
    return model(ids[:, :-1], ids[:, 1:], CrossEntropy()).objective


@pytest.mark.distributed
def test_a_pass_sends_what_its_facts_say_where_each_rank_has_one_expert_of_every_token(tmp_path: Path) -> None:
    on_ranks(_one_expert_on_each_rank, folder=tmp_path)


def _one_expert_on_each_rank(rank: int) -> None:
    ids = torch.randint(0, 31, (2, 9), generator=torch.Generator().manual_seed(rank))
    for recompute, share_again in ((unchanged, 0.0), (every_block, 1.0)):
        model = recompute(small(num_experts_per_token=2))
        cut_in_two(model)
        _favour(model, 0, 2)
        stream = Stream(
            num_tokens=16, num_bytes=0, num_layers=2, share_again=share_again, expert_bytes=16 * 8 * 4 * 2 * 2
        )
        planned, _ = mesh_facts(option="fsdp", expert_size=2).collectives(
            num_ranks=2, gathered=0.0, num_gradients=0.0, micro_steps=1, stream=stream
        )
        with Sent() as sent:
            _loss(model, ids).backward()
        rows = [each for each in sent.take() if each.kind == "exchange" and each.num_bytes > OF_COUNTS]
        assert (planned.group, planned.num_bytes) == ("expert groups", sum(each.sent for each in rows))
        assert planned.num_gathers == len(rows)


@pytest.mark.parametrize(
    ("model", "num_ranks", "message"),
    [
        ("mixtral", 3, "strategy.expert_size=3 does not divide model.experts.num_experts=4. Did you mean 1?"),
        ("llama", 2, "strategy.expert_size=2 needs model.experts. Did you mean strategy.expert_size=1?"),
    ],
)
def test_experts_that_do_not_divide_are_refused_with_the_nearest_that_do(
    model: str, num_ranks: int, message: str
) -> None:
    with torch.device("meta"):
        built = MODELS[model](vocab_size=VOCAB_SIZE, max_context_tokens=16)
    with pytest.raises(ConfigurationError) as refused:
        require_expert_shares(built, num_ranks=num_ranks, num_shards=1)
    assert str(refused.value) == message
