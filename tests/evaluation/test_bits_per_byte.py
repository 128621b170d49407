import math

import pytest
import torch

from lmtrain.evaluation.bits_per_byte import batches_of_texts, evaluate, score_held_out
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.gpt2 import GPT2
from tests.evaluation.bigram import VOCAB_SIZE, Bigram
from tests.ranks import on_ranks


def build(*, vocab_size=256, init_std=0.2):
    model = GPT2(width=16, num_layers=1, num_heads=2, vocab_size=vocab_size, max_context_tokens=64, init_std=init_std)
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def windows(*, num_batches=3, num_sequences=2, num_tokens=16, vocab_size=256, seed=0):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(vocab_size, (num_batches, num_sequences, num_tokens + 1), generator=generator)
    return [(batch[:, :-1], batch[:, 1:].clone()) for batch in text]


@pytest.mark.parametrize(("num_batches", "num_sequences", "num_tokens"), [(1, 1, 1), (3, 2, 16), (7, 3, 11)])
def test_uniform_model_of_bytes_needs_eight_bits_whatever_the_batch(num_batches, num_sequences, num_tokens):
    batches = windows(num_batches=num_batches, num_sequences=num_sequences, num_tokens=num_tokens)
    result = evaluate(build(init_std=0.0), batches, token_bytes=torch.ones(256), loss=CrossEntropy())
    assert result.bits_per_byte == pytest.approx(8.0, abs=1e-7)  # fp32 has ln 256 to 3e-9
    assert result.num_bytes == result.num_tokens == num_batches * num_sequences * num_tokens


def test_result_does_not_depend_on_how_text_is_batched():
    model = build()
    batches = windows(num_batches=4)
    joined = [(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))]
    results = [evaluate(model, given, token_bytes=torch.ones(256), loss=CrossEntropy()) for given in (batches, joined)]
    assert results[0].nats == pytest.approx(results[1].nats, rel=1e-7)
    assert results[0].num_tokens == results[1].num_tokens


def test_padding_counts_as_neither_bytes_nor_tokens_nor_nats():
    model = build()
    (inputs, targets), *_ = windows()
    expected = evaluate(model, [(inputs[:1], targets[:1])], token_bytes=torch.ones(256), loss=CrossEntropy())
    targets[1:] = -100
    assert evaluate(model, [(inputs, targets)], token_bytes=torch.ones(256), loss=CrossEntropy()) == expected


def test_nats_are_those_of_a_plain_sum():
    model = build()
    batches = windows()
    result = evaluate(model, batches, token_bytes=torch.ones(256), loss=CrossEntropy(z_loss_weight=1.0))
    with torch.no_grad():
        nats = sum(
            torch.nn.functional.cross_entropy(model(x).double().flatten(0, 1), y.flatten(), reduction="sum").item()
            for x, y in batches
        )
    assert result.nats == pytest.approx(nats, rel=1e-6)


@pytest.mark.distributed
def test_two_ranks_with_unequal_shares_equal_one(tmp_path):
    batches = windows(num_batches=3)
    expected = evaluate(build(), batches, token_bytes=torch.ones(256), loss=CrossEntropy())
    uniform = evaluate(build(init_std=0.0), batches, token_bytes=torch.ones(256), loss=CrossEntropy())
    on_ranks(_rank, folder=tmp_path)
    for rank in range(2):
        result = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert result[0].nats == pytest.approx(expected.nats, rel=1e-12)
        assert (result[0].num_bytes, result[0].num_tokens) == (expected.num_bytes, expected.num_tokens)
        assert result[1].bits_per_byte == pytest.approx(uniform.bits_per_byte, rel=1e-12)


def _rank(rank):
    share = windows(num_batches=3)[rank::2]
    results = [
        evaluate(build(init_std=std), share, token_bytes=torch.ones(256), loss=CrossEntropy()) for std in (0.2, 0.0)
    ]
    torch.save(results, f"{rank}.pt")


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
