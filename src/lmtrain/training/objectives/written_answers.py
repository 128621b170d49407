"""A micro-batch of answers as they were written and rewarded, with a checkpoint's form of it.

B answers, T context tokens, R rewards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from lmtrain.models.base import LanguageModel
from lmtrain.training.batches.token_batch import TokenBatch
from lmtrain.training.objectives.rewards import Reward


@dataclass(frozen=True, kw_only=True)
class WritingSettings:
    """Answers of at most `num_new_tokens`, drawn at `temperature` from the `top_k` likeliest (None: all) and `top_p`.

    Each of `rewards` counts by its weight, 1 where `weights` has none.
    """

    num_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    rewards: Mapping[str, Reward]
    weights: Mapping[str, float]


class WrittenAnswers(NamedTuple):
    """Ids [B, T + 1] of prompts and answers, bool `mask` [B, T] of the answers' targets, `rewards` [B] and [B, R].

    `ended` bool [B] tells the answers that the model ended itself, `is_asked` bool [B] the rows that held a question
    with room for an answer. `log_probs` fp32 [B, T] are those of the weights that wrote; None while these have not
    moved.
    """

    ids: Tensor
    mask: Tensor
    rewards: Tensor
    each_reward: Tensor
    ended: Tensor
    is_asked: Tensor
    log_probs: Tensor | None = None

    def to_checkpoint(self) -> dict[str, Any]:
        """Return the tensors by name, on the CPU."""
        return {name: None if part is None else part.cpu() for name, part in zip(NAMES, self, strict=True)}


NAMES = tuple(WrittenAnswers.__annotations__)


class AnswerWriter(Protocol):
    """The writing of answers by a model as it is trained: its own attention over a cache, its own weights."""

    def __call__(self, model: LanguageModel, batch: TokenBatch, /, *, copies: int, seed: int) -> WrittenAnswers:
        """Write an answer to the last question of each row [B, T + 1], equal rows in groups of `copies`."""
        ...


class MakeWriter(Protocol):
    """A writer for an objective's own settings."""

    def __call__(self, settings: WritingSettings, /) -> AnswerWriter:
        """Return the writer."""
        ...


class WritesAnswers(Protocol):
    """An objective of answers written by the model."""

    def write_with(self, make: MakeWriter) -> None:
        """Take the run's writer."""
        ...

    def keep_start(self, model: LanguageModel) -> None:
        """Keep a frozen copy of the model as the run starts from it."""
        ...
