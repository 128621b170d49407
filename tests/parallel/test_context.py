"""Two ranks that share each sequence, and two such pairs, held to a single process. Resumed: the trail of all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from lmtrain.accounting.options.strategy import Stream
from lmtrain.errors import ConfigurationError
from lmtrain.evaluation.bits_per_byte import evaluate
from lmtrain.inference.sampling import Sampling, generate
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.latent_attention import LatentWidths
from lmtrain.models.llama import Llama
from lmtrain.parallel.context import context_facts
from lmtrain.parallel.ulysses import HeadExchange, require_shares, share_heads
from tests.parallel.parity_run import MODELS
from tests.parallel.strategy_parity import CLIP, Found, require_same, trained
from tests.ranks import on_ranks

CASES: list[dict[str, Any]] = [
    {"model": "llama", "optimizer": "adamw", "loss": "plain"},
    {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True},
    {"model": "nano", "optimizer": "muon", "loss": "chunked", "recompute": "selective"},
    {"model": "olmoe", "optimizer": "adamw", "loss": "plain", "micro_batch_sequences": 4},
    {"model": "llama", "optimizer": "adamw", "loss": "plain", "recompute": True, "compile": "captured"},
    {"model": "sinks", "optimizer": "adamw", "loss": "plain", "recompute": True},
]
PAIR = {"strategy": "context", "settings": {"context_size": 2}, "micro_batch_sequences": 4}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """All trainings in one process, a whole step at once but where experts are balanced in micro-batches."""
    plain = [{"micro_batch_sequences": 8} | case | {"compile": "none", "recompute": False} for case in CASES]
    return trained(tmp_path_factory.mktemp("alone"), [{"strategy": "single"} | case for case in plain])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """All on a group of two ranks, with two micro-steps a step."""
    return trained(tmp_path_factory.mktemp("pair"), [PAIR | case for case in CASES], num_ranks=2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES)))
def test_losses_gradients_and_weights_are_those_of_one_process(
    pair: list[Found], alone: list[Found], case: int
) -> None:
    require_same(pair[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_two_pairs_and_a_group_of_four_train_as_one_process(tmp_path: Path, alone: list[Found]) -> None:
    pairs = PAIR | CASES[2] | {"micro_batch_sequences": 2}
    of_four = PAIR | CASES[1] | {"settings": {"context_size": 4, "reduce_every_micro_step": True}}
    for found, expected in zip(trained(tmp_path, [pairs, of_four], num_ranks=4), (alone[2], alone[1]), strict=True):
        require_same(found, expected)


@pytest.mark.distributed
@pytest.mark.parametrize(("case", "width", "share_again"), [(0, 16 + 8 + 8 + 16, 0.0), (1, 4 * 16, 1.0)])
def test_a_step_exchanges_what_its_facts_say(pair: list[Found], case: int, width: int, share_again: float) -> None:
    facts = {"gathered": 0.0, "num_gradients": 0.0, "micro_steps": 2}
    stream = Stream(
        num_tokens=64, num_bytes=64 * 16 * 4, num_layers=2, share_again=share_again, attention_bytes=64 * 2 * width * 4
    )
    group, _ = context_facts(context_size=2).collectives(num_ranks=2, stream=stream, **facts)
    exchanged = [each.sent for each in pair[case]["sent"][-1] if each.kind == "exchange"]
    assert (group.group, sum(exchanged)) == ("context groups", group.num_bytes)
    assert len(exchanged) == (4 + 2 * share_again) * 2 * 2, "of two layers and two micro-steps"


LENGTHS = (8, 7, 1)


def read(model: LanguageModel) -> list[torch.Tensor]:
    """Return logits and scores of sequences of every length, with documents, and a text that goes on."""
    found: list[torch.Tensor] = []
    draw = torch.Generator().manual_seed(1)
    for length in LENGTHS:
        tokens = torch.randint(301, (3, length + 1), generator=draw)
        documents = torch.arange(length).floor_divide(3).expand(3, -1)
        batch = tokens[:, :-1], tokens[:, 1:], documents
        scores = evaluate(model, [batch], token_bytes=torch.ones(301), loss=CrossEntropy(), num_copies=2)
        with torch.no_grad():
            found += [model(batch[0], documents=documents), torch.tensor([scores.nats, scores.num_bytes])]
    greedy = Sampling(temperature=0.0)
    return [*found, generate(model, torch.tensor([[5, 3]]), num_new_tokens=6, sampling=greedy, seed=0)]


def on_two(rank: int, folder: str) -> None:
    """Hold each model on two ranks to itself in one."""
    groups = init_device_mesh("cpu", (2,), mesh_dim_names=("context",))
    for name in ("nano", "gpt2", "olmoe"):
        model = MODELS[name](vocab_size=301, max_context_tokens=16)
        model.initialize_weights(torch.Generator().manual_seed(0))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
        expected = read(model)
        share_heads(model, HeadExchange(groups))
        for one, whole in zip(read(model), expected, strict=True):
            torch.testing.assert_close(one, whole, rtol=1e-5, atol=1e-5)
    (Path(folder) / f"held{rank}").touch()


@pytest.mark.distributed
def test_texts_of_any_length_are_scored_and_written_as_by_one_process(tmp_path: Path) -> None:
    on_ranks(on_two, str(tmp_path), folder=tmp_path, num_ranks=2)
    assert len(list(tmp_path.glob("held*"))) == 2


LATENT = LatentWidths(latent=4, unrotated=2, rotated=2, value=4)


def llama(**settings: object) -> LanguageModel:
    sizes = {"width": 24, "num_layers": 1, "num_heads": 6, "feed_forward_width": 30, "vocab_size": 31}
    with torch.device("meta"):
        return Llama(**{**sizes, "max_context_tokens": 8, **settings})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("settings", "num_ranks", "message"),
    [
        ({}, 4, "strategy.context_size=4 does not divide model.num_heads=6 over its ranks. Did you mean 3?"),
        ({"num_kv_heads": 2}, 3, "model.num_kv_heads=2 over its ranks. Did you mean 2?"),
        ({"num_kv_heads": 1}, 2, "model.num_kv_heads=1 over its ranks. Did you mean strategy=fsdp"),
        (
            {"qk_norm": True, "qk_norm_over": "width", "key_smear": True},
            2,
            "model.key_smear=true reads the keys of earlier slices",
        ),
        ({"latent_attention": LATENT}, 2, "model.latent_attention cannot be cut .* use strategy=fsdp"),
    ],
)
def test_heads_that_cannot_be_shared_are_refused_with_what_can(
    settings: dict[str, object], num_ranks: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_shares(llama(**settings), num_ranks=num_ranks)
