"""A model of two ranks without gradients, on sequences that the group divides and others, held to one process."""

from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from lmtrain.evaluation.bits_per_byte import evaluate
from lmtrain.inference.sampling import Sampling, generate
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.ulysses import HeadExchange, share_heads
from tests.parallel.parity_run import MODELS
from tests.ranks import on_ranks

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
