"""Documents of unequal length: one padded batch, several smaller ones, and two ranks give the same steps.

And with documents kept apart, a packed row gives each token the loss that it has in its document alone. fp32 sums are
taken in another order when a batch is split, so equality is to 2e-6 relative (a few units in the last place of fp32).
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lmtrain.data.packing import BestFit, Contiguous
from lmtrain.models.attention.auto import auto
from lmtrain.models.attention.eager import eager
from lmtrain.models.llama import Llama
from lmtrain.training.token_batch import to_batch, training_tokens
from tests import forked, tiny
from tests.data.documents import documents_of, make_dataset
from tests.parity.plain_python import CLIP

SCRIPT = Path(__file__).with_name("uneven_documents.py")
STEPS = 4
RELATIVE_FP32 = 2e-6


def run_script(packing: str, micro_batch_sequences: int, strategy: str = "single", num_ranks: int = 1) -> list[float]:
    """Run the script on some ranks and return losses and gradient norms."""
    words = [packing, str(micro_batch_sequences), str(STEPS), strategy]
    finished = forked.run(SCRIPT, words, folder=Path.cwd(), environment=tiny.environment(), num_ranks=num_ranks)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.strip().splitlines()[-1])


@pytest.mark.distributed
@pytest.mark.parametrize(("packing", "strategy"), [("document", "ddp"), ("best_fit", "ddp"), ("document", "fsdp")])
def test_one_batch_many_and_two_ranks_take_the_same_clipped_steps(packing: str, strategy: str) -> None:
    whole = run_script(packing, 8)
    assert run_script(packing, 2) == pytest.approx(whole, rel=RELATIVE_FP32)
    assert run_script(packing, 1, strategy, num_ranks=2) == pytest.approx(whole, rel=RELATIVE_FP32)
    assert whole[-2] < whole[0] - 0.05, "it learns, so equality means something"
    assert min(whole[1::2]) > CLIP, "every step is clipped"


def tiny_model(attention, **options) -> Llama:
    model = Llama(
        width=32, num_layers=2, num_heads=2, feed_forward_width=64, vocab_size=600, max_context_tokens=64,
        attention=attention, **options,
    )  # fmt: skip
    model.initialize_weights(torch.Generator().manual_seed(3))
    return model.eval()


def losses(model: Llama, inputs: torch.Tensor, targets: torch.Tensor, documents=None) -> torch.Tensor:
    logits = model(inputs, documents=documents)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none").view_as(
        targets
    )


@pytest.mark.parametrize("attention", [eager, auto])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_bigram_buckets": 16, "embedding_smear": True, "key_smear": True, "value_embedding_layers": [1]}],
)
@pytest.mark.parametrize("packing", [BestFit(document_mask=True), Contiguous(document_mask=True)])
def test_a_packed_row_gives_each_token_the_loss_it_has_alone(tmp_path, packing, options, attention) -> None:
    lengths = [5, 17, 2, 30, 9, 1, 3, 24, 6, 11]
    dataset = make_dataset(tmp_path, lengths, num_ids=600)
    rows = packing.rows(dataset, context_tokens=32)
    model = tiny_model(attention, **options)
    alone: dict[tuple[int, ...], torch.Tensor] = {}
    with torch.no_grad():
        for document in documents_of(dataset):
            ids = torch.tensor([[0, *document]])
            alone[tuple(document)] = losses(model, ids[:, :-1], ids[:, 1:])[0]
        inputs, targets, documents = training_tokens(to_batch(rows.read(np.arange(rows.num_rows))))
        assert documents is not None
        packed = losses(model, inputs, targets, documents)
        blended = losses(model, inputs, targets)
    num_compared = 0
    for row in range(rows.num_rows):
        for number in documents[row].unique():
            here = (documents[row] == number) & (targets[row] != -100)
            expected = alone.get(tuple(targets[row][here].tolist()))
            if expected is not None and inputs[row][here][0] == 0:
                num_compared += 1
                torch.testing.assert_close(packed[row][here], expected, rtol=2e-5, atol=2e-6)
    assert num_compared >= (len(lengths) if isinstance(packing, BestFit) else 5)
    assert (packed - blended).abs().max() > 1e-3, "without the mask the losses are others"
