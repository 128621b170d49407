import pytest
import torch

from lmtrain.evaluation.scored_rows import ScoredRow, score_rows
from lmtrain.models.gpt2 import GPT2


def build(max_context_tokens=32):
    model = GPT2(width=16, num_layers=2, num_heads=2, vocab_size=64, max_context_tokens=max_context_tokens)
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model.train()


def rows(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(64, (length,), generator=generator).tolist() for length in lengths]


def test_scores_are_those_of_a_plain_forward_however_they_are_batched():
    model, spans = (
        build(),
        [ScoredRow(row, start) for row, start in zip(rows([9, 4, 17, 9, 2]), (3, 1, 16, 8, 1), strict=True)],
    )
    found = score_rows(model, spans)
    alone = [score_rows(model, [span], batch_tokens=1)[0] for span in spans]
    assert model.training
    model.eval()
    for span, score, single in zip(spans, found, alone, strict=True):
        with torch.no_grad():
            log_probabilities = model(torch.tensor([span.ids]))[0].log_softmax(-1)
        wanted = [float(log_probabilities[place - 1, span.ids[place]]) for place in range(span.start, len(span.ids))]
        assert score.nats == pytest.approx(-sum(wanted), rel=1e-5) == single.nats
        assert score.num_tokens == len(wanted)


def test_the_likeliest_ids_are_known():
    model, (row,) = build().eval(), rows([6])
    with torch.no_grad():
        likeliest = int(model(torch.tensor([row]))[0, -1].argmax())
    right, wrong = score_rows(model, [ScoredRow([*row, likeliest], 6), ScoredRow([*row, (likeliest + 1) % 64], 6)])
    assert right.is_likeliest
    assert not wrong.is_likeliest


def test_a_row_beyond_the_context_keeps_its_end():
    model, (row,) = build(max_context_tokens=8), rows([20])
    (cut,) = score_rows(model, [ScoredRow(row, 18)])
    (end,) = score_rows(model, [ScoredRow(row[-9:], 7)])
    assert cut == end
    assert ScoredRow(row, 3).within(8) == ScoredRow(row[-9:], 1)
