"""Two ranks that share each sequence, and two such pairs, held to a single process. Resumed: the trail of all."""

from collections.abc import Sequence
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
from lmtrain.models.llama import Llama
from lmtrain.models.short_convolution import ShortConvolution
from lmtrain.parallel.context_slices import require_slices, slice_sequences
from lmtrain.parallel.mesh import mesh_facts
from tests.parallel.parity_run import MODELS
from tests.parallel.strategy_parity import CLIP, Found, require_same, trained
from tests.ranks import on_ranks

CASES: list[dict[str, Any]] = [
    {"model": "llama", "optimizer": "adamw", "loss": "plain", "notes_messages": True},
    {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True, "notes_messages": True},
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
    group, _ = mesh_facts(option="context", context_size=2).collectives(num_ranks=2, stream=stream, **facts)
    exchanged = [each.sent for each in pair[case]["sent"][-1] if each.kind == "exchange"]
    assert (group.group, sum(exchanged)) == ("context groups", group.num_bytes)
    assert len(exchanged) == (4 + 2 * share_again) * 2 * 2, "of two layers and two micro-steps"


GATHERED_CASES: list[dict[str, Any]] = [
    {"model": "llama_1"},
    {"model": "gpt2_odd", "recompute": True, "loss": "chunked"},
    {"model": "nano_1", "optimizer": "muon", "recompute": "selective"},
    {"model": "latent", "compile": "captured", "recompute": True},
    {"model": "capped_1"},
    {"model": "sinks_1", "recompute": True},
    {"model": "after", "packs": False},
]
LONGER = {"optimizer": "adamw", "loss": "plain", "steps": 5, "micro_batch_sequences": 8}


@pytest.mark.distributed
@pytest.mark.parametrize(("num_ranks", "kinds"), [(2, ()), (4, ("llama_1", "nano", "capped", "latent"))])
def test_groups_that_do_not_divide_the_heads_of_keys_train_as_one_process(
    tmp_path: Path, num_ranks: int, kinds: Sequence[str]
) -> None:
    """To 2e-5: after five steps the soft cap's norms differ by 6e-6 on four ranks, all else by less than 2e-6."""
    cases = [LONGER | {"model": kind} for kind in kinds] or [LONGER | case for case in GATHERED_CASES]
    alone = trained(tmp_path, [case | {"strategy": "single", "recompute": False, "compile": "none"} for case in cases])
    group = {"strategy": "context", "settings": {"context_size": num_ranks}}
    together = trained(tmp_path, [case | group for case in cases], num_ranks=num_ranks)
    for found, expected in zip(together, alone, strict=True):
        require_same(found, expected, relative=2e-5)
        assert min(expected["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
@pytest.mark.parametrize(("model", "num_layers", "kv_width"), [("llama_1", 2, 4), ("latent", 3, 4 * 6)])
def test_a_step_gathers_what_its_facts_say(tmp_path: Path, model: str, num_layers: int, kv_width: int) -> None:
    """Two pairs of four ranks; latent keys are 6 wide, and values padded to that."""
    case = PAIR | {"model": model, "optimizer": "adamw", "loss": "plain", "micro_batch_sequences": 2}
    (found,) = trained(tmp_path, [case | {"steps": 1, "notes_messages": True}], num_ranks=4)
    facts = {"gathered": 0.0, "num_gradients": 0.0, "micro_steps": 2}
    kv_bytes = 32 * num_layers * 2 * kv_width * 4
    stream = Stream(num_tokens=32, num_bytes=0, num_layers=num_layers, kv_bytes=kv_bytes, num_kv_heads=1)
    group, *_ = mesh_facts(option="context", context_size=2).collectives(num_ranks=4, stream=stream, **facts)
    messages = [each for each in found["sent"][-1] if each.num_ranks == 2 and each.kind in ("gather", "scatter")]
    assert sum(each.sent for each in messages) == group.num_bytes
    assert len(messages) == group.num_gathers


GATHERED = ("nano_1", "capped_1", "sinks_1", "latent")
LENGTHS = (8, 7, 6, 1)


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
    for name in ("nano", "gpt2", "olmoe", *GATHERED):
        model = MODELS[name](vocab_size=301, max_context_tokens=16)
        model.initialize_weights(torch.Generator().manual_seed(0))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
        expected = read(model)
        slice_sequences(model, groups)
        for one, whole in zip(read(model), expected, strict=True):
            torch.testing.assert_close(one, whole, rtol=1e-5, atol=1e-5)
    (Path(folder) / f"held{rank}").touch()


@pytest.mark.distributed
def test_texts_of_any_length_are_scored_and_written_as_by_one_process(tmp_path: Path) -> None:
    on_ranks(on_two, str(tmp_path), folder=tmp_path, num_ranks=2)
    assert len(list(tmp_path.glob("held*"))) == 2


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"num_future_tokens": 1}, "num_future_tokens"),
        ({"recurrent_layers": ShortConvolution(), "recurrent_pattern": "RA"}, "recurrent_layers"),
    ],
)
def test_layers_that_need_other_slices_are_refused(settings: dict[str, Any], name: str) -> None:
    sizes: dict[str, Any] = {"width": 24, "num_layers": 2, "num_heads": 6, "feed_forward_width": 30}
    with torch.device("meta"):
        model = Llama(**sizes, vocab_size=31, max_context_tokens=8, **settings)
    with pytest.raises(ConfigurationError, match=f"model.{name} cannot be cut .* use strategy=fsdp"):
        require_slices(model)
