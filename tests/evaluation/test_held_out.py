import math

import pytest
import torch

from lmtrain.errors import DataError
from lmtrain.evaluation.held_out import batches_of_texts, score_held_out
from lmtrain.evaluation.scored_rows import ScoredRow, score_rows
from lmtrain.losses.cross_entropy import CrossEntropy
from tests.evaluation.bigram import VOCAB_SIZE, Bigram

BYTES = torch.tensor([*[1] * 256, 0])


def ids(num_tokens, seed=0):
    return torch.randint(256, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("batch_tokens", [1, 24, 10_000])
@pytest.mark.parametrize("context_tokens", [1, 7, 64])
def test_every_id_of_every_text_is_predicted_once(batch_tokens, context_tokens):
    texts = [ids(50), ids(3, seed=1), ids(7, seed=2)]
    batches = list(batches_of_texts(texts, begin_id=256, context_tokens=context_tokens, batch_tokens=batch_tokens))
    targets = torch.cat([targets.flatten() for _, targets in batches])
    assert sorted(targets[targets >= 0].tolist()) == sorted(texts[0] + texts[1] + texts[2])
    score = score_held_out(Bigram({}), batches, token_bytes=BYTES, loss=CrossEntropy())
    assert score.bits_per_byte == pytest.approx(math.log2(VOCAB_SIZE), abs=1e-6)
    assert score.num_bytes == 60


def test_the_error_is_that_of_a_ratio_between_batches():
    model = Bigram({"a": {"b": 0.5}, "b": {"a": 0.25}})  # 1 and 2 bits
    batches = [
        (torch.tensor([[ord("a")]]), torch.tensor([[ord("b")]])),
        (torch.tensor([[ord("b")]]), torch.tensor([[ord("a")]])),
    ]
    score = score_held_out(model, batches, token_bytes=BYTES, loss=CrossEntropy())
    assert score.bits_per_byte == pytest.approx(1.5)
    assert score.standard_error == pytest.approx(math.sqrt(2 / 1 * (0.5**2 + 0.5**2)) / 2)
    alone = score_held_out(model, batches[:1], token_bytes=BYTES, loss=CrossEntropy())
    assert alone.standard_error is None


def test_a_model_of_nan_is_refused():
    model = Bigram({})
    model.table.data.fill_(math.nan)
    batch = (torch.tensor([[1]]), torch.tensor([[2]]))
    with pytest.raises(DataError, match="gives no numbers"):
        score_held_out(model, [batch], token_bytes=BYTES, loss=CrossEntropy())
    with pytest.raises(DataError, match="gives no numbers"):
        score_rows(model, [ScoredRow([1, 2], 1)])


def test_a_text_without_bytes_is_refused():
    batch = (torch.tensor([[1]]), torch.tensor([[256]]))
    with pytest.raises(DataError, match="has 1 targets and 0 bytes"):
        score_held_out(Bigram({}), [batch], token_bytes=BYTES, loss=CrossEntropy())
