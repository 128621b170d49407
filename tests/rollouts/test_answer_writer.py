"""Written by the engine of `lmtrain generate` with a model in training; the trainer's forward pass is the reference."""

import pytest
import torch

from lmtrain.adapters.lora import Lora
from lmtrain.inference.cache import CachedAttention
from lmtrain.inference.engine import TextEngine
from lmtrain.inference.generation import Request
from lmtrain.losses.log_probs import TokenLogProbs
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.rollouts.answer_writer import SampledAnswers, question_of
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tracking.events import EventLog
from lmtrain.training.objectives.grpo import WritingSettings
from lmtrain.training.objectives.rewards import whole_answer
from lmtrain.training.token_batch import TokenBatch, training_tokens
from tests.adapters.test_low_rank import moved, small

TEXTS = {"text": lambda answer: float(len(answer.text)), "end": whole_answer}


@pytest.fixture(name="tokenizer")
def byte_tokenizer():
    return ByteLevelTokenizer()


def writer(tokenizer, folder, **settings):
    values = {"num_new_tokens": 6, "temperature": 1.0, "top_k": None, "top_p": 1.0, "rewards": TEXTS, "weights": {}}
    return SampledAnswers(WritingSettings(**values | settings), tokenizer=tokenizer, events=EventLog(folder, 0))


def questions(num_tokens: int = 20) -> TokenBatch:
    """Return two questions twice each, the second so long that two tokens fit behind it, and one that has no answer."""
    ids = torch.randint(97, 122, (6, num_tokens + 1), generator=torch.Generator().manual_seed(3))
    ids[1], ids[3], ids[5] = ids[0], ids[2], ids[4]
    mask = torch.zeros(6, num_tokens, dtype=torch.bool)
    mask[:2, 8:12] = True
    mask[2:4, 18:19] = True
    return TokenBatch(ids, None, mask)


@pytest.mark.parametrize("adapted", [False, True])
def test_the_generator_s_log_probabilities_are_the_trainer_s(tokenizer, tmp_path, adapted: bool) -> None:
    model = small(attention=CachedAttention(sdpa))
    if adapted:
        model = moved(Lora(rank=2, alpha=4).attach(model, seed=0))
    model.train()
    batch = questions()
    written = writer(tokenizer, tmp_path)(model, batch, copies=2, seed=7)
    assert model.training
    inputs, targets, _ = training_tokens(TokenBatch(written.ids, None, written.mask))
    trained = model(inputs, targets, TokenLogProbs(), None).objective
    assert trained.requires_grad
    pieces = tokenizer.bytes_of_ids()
    for row, prompt_tokens in enumerate([9, 9, 19, 19]):
        request = Request(
            prompt=batch.ids[row, :prompt_tokens].tolist(),
            num_new_tokens=min(6, 21 - prompt_tokens),
            end_ids=frozenset({tokenizer.end_of_text_id}),
            seed=7,
            index=row,
            num_likeliest=0,
        )
        *_, last = TextEngine(model, pieces).run([request])
        text = last.generation
        assert written.ids[row, prompt_tokens : len(text.tokens)].tolist() == text.new_tokens
        scores = torch.tensor([score.log_probability for score in text.scores])
        torch.testing.assert_close(trained[row][written.mask[row]].detach(), scores, rtol=0, atol=1e-5)


def test_rewards_come_with_each_answer_and_rows_without_a_question_have_no_target(tokenizer, tmp_path) -> None:
    model = small(attention=CachedAttention(sdpa))
    write = writer(tokenizer, tmp_path, weights={"end": 3.0})
    written = write(model, questions(), copies=2, seed=1)
    assert written.is_asked.tolist() == [True, True, True, True, False, False]
    assert written.mask.any(dim=1).tolist() == [True, True, True, True, False, False]
    torch.testing.assert_close(written.rewards, written.each_reward @ torch.tensor([1.0, 3.0]))
    assert written.ended.float()[:4].tolist() == written.each_reward[:4, 1].tolist()
    again, other = (write(model, questions(), copies=2, seed=seed) for seed in (1, 2))
    assert torch.equal(again.ids, written.ids)
    assert not torch.equal(other.ids, written.ids)
    assert not torch.equal(written.ids[0], written.ids[1])  # equal questions, answers of their own


def test_a_question_is_the_last_one_and_an_answer_cut_at_the_context_is_none() -> None:
    ids = torch.arange(10, 21)
    mask = torch.tensor([False, True, True, False, False, False, True, True, True, False])
    found = question_of(ids, mask, ends=frozenset({19}))
    assert found is not None
    assert (found.prompt, found.expected) == ([*range(10, 17)], [17, 18])
    mask[-1] = True
    assert question_of(ids, mask, ends=frozenset({19})) is None
    assert question_of(ids, mask, ends=frozenset({20})) is not None
    assert question_of(ids, torch.zeros(10, dtype=torch.bool), ends=frozenset()) is None
