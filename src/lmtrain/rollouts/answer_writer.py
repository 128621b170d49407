"""Answers of a model in training: written with its own weights over a cache, and rewarded.

The model stays as training has it (adapters, precision, device); its attention takes a cache for as long as it writes.
B answers, T context tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lmtrain.inference.engine import EngineLimits, TextEngine
from lmtrain.inference.generation import Generation, Request
from lmtrain.inference.loaded_model import ids_of_ends
from lmtrain.inference.sampling import Sampling
from lmtrain.models.base import LanguageModel
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tracking.events import EventLog
from lmtrain.training.objectives.grpo import WritingSettings, WrittenAnswers
from lmtrain.training.objectives.rewards import RewardScorer, WrittenAnswer
from lmtrain.training.token_batch import TokenBatch


@dataclass(frozen=True)
class AskedQuestion:
    """The ids of a conversation up to an answer's start, and those of the data's own answer."""

    prompt: list[int]
    expected: list[int]


@final
class SampledAnswers:
    """Draws answers by its settings, each from another seed, and rewards them."""

    def __init__(self, settings: WritingSettings, *, tokenizer: Tokenizer, events: EventLog) -> None:
        """Hold the settings; the time of writing is `generation` in `events`, that of scoring `rewards`."""
        self._tokenizer, self._events = tokenizer, events
        self._pieces, self._ends = tokenizer.bytes_of_ids(), ids_of_ends(tokenizer)
        self._settings = settings
        self._score = RewardScorer(
            settings.rewards, weights=settings.weights, timeout_seconds=settings.reward_timeout_seconds
        )
        self._sampling = Sampling(temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)

    def __call__(self, model: LanguageModel, batch: TokenBatch, /, *, copies: int, seed: int) -> WrittenAnswers:
        """Write an answer to the last question of each row [B, T + 1], equal rows in groups of `copies`."""
        rows = batch.ids.cpu()
        assert batch.loss_mask is not None
        masks = batch.loss_mask.cpu()
        questions = [question_of(rows[first], masks[first], ends=self._ends) for first in range(0, len(rows), copies)]
        asked = [question for question in questions for _ in range(copies)]
        with self._events.pause("generation"):
            texts = self._write(model, asked, room=rows.shape[1], seed=seed)
        answers = [self._answer(text, question) for text, question in zip(texts, asked, strict=True)]
        with self._events.pause("rewards"):
            each, sums = self._score([one for one in answers if one is not None])
        return _joined(batch, texts, answers, each=each, sums=sums, num_rewards=len(self._settings.rewards))

    def _write(
        self, model: LanguageModel, asked: Sequence[AskedQuestion | None], *, room: int, seed: int
    ) -> list[Generation | None]:
        """Return the texts in the order of their questions; None where there is none."""
        requests = [
            Request(
                prompt=question.prompt,
                num_new_tokens=min(self._settings.num_new_tokens, room - len(question.prompt)),
                sampling=self._sampling,
                end_ids=self._ends,
                seed=seed,
                index=index,
            )
            for index, question in enumerate(asked)
            if question is not None
        ]
        is_training = model.training
        # One text after another changes shapes: nothing worth compiling. A cast kept from here has no gradient.
        with torch.compiler.set_stance("force_eager"):
            engine = TextEngine(model, self._pieces, limits=EngineLimits(num_texts=max(1, len(requests))))
            written = {text.request.index: text for text in engine.write(requests)}
        torch.clear_autocast_cache()
        model.train(is_training)
        return [written.get(index) for index in range(len(asked))]

    def _answer(self, text: Generation | None, question: AskedQuestion | None) -> WrittenAnswer | None:
        if text is None or question is None:
            return None
        return WrittenAnswer(
            text=text.text,
            question=self._tokenizer.decode(question.prompt),
            expected=self._tokenizer.decode(question.expected),
            ended=text.finish_reason == "stop",
        )


def question_of(ids: Tensor, mask: Tensor, *, ends: frozenset[int]) -> AskedQuestion | None:
    """Return the last question of a row [T + 1] by its loss mask [T]; None where no answer, or not all of it, fits."""
    places = mask.nonzero().flatten().tolist()
    if not places:
        return None
    first = last = places[-1]
    learned = set(places)
    while first - 1 in learned:
        first -= 1
    expected: list[int] = ids[first + 1 : last + 2].tolist()
    if last + 1 == len(mask) and expected[-1] not in ends:  # cut at the context
        return None
    return AskedQuestion(ids[: first + 1].tolist(), [token for token in expected if token not in ends])


def _joined(
    batch: TokenBatch,
    texts: Sequence[Generation | None],
    answers: Sequence[WrittenAnswer | None],
    *,
    each: Sequence[Sequence[float]],
    sums: Sequence[float],
    num_rewards: int,
) -> WrittenAnswers:
    """Put prompts and answers into rows of the batch's shape; rows that were not asked have no target."""
    num_rows, num_ids = batch.ids.shape
    ids, mask = batch.ids.cpu().long(), torch.zeros(num_rows, num_ids - 1, dtype=torch.bool)
    for row, text in enumerate(texts):
        if text is not None:
            begins, ends = len(text.request.prompt), len(text.tokens)
            ids[row, begins:ends] = torch.tensor(text.new_tokens)
            mask[row, begins - 1 : ends - 1] = True
    is_asked = torch.tensor([answer is not None for answer in answers])
    rewards, each_reward = torch.zeros(num_rows), torch.zeros(num_rows, num_rewards)
    rewards[is_asked] = torch.tensor(sums, dtype=torch.float32)
    each_reward[is_asked] = torch.tensor(each, dtype=torch.float32).view(-1, num_rewards)
    ended = torch.tensor([answer is not None and answer.ended for answer in answers])
    parts = (ids, mask, rewards, each_reward, ended, is_asked)
    return WrittenAnswers(*(part.to(batch.ids.device) for part in parts))
