"""The work of a pipeline's stages that do not train, in bytes and tokens, and its seconds.

An evaluation reads text in forward passes, a third of a training step's FLOPs a token, and writes answers as GRPO's
steps do (`generation_plan`), on one device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lmtrain.accounting.training_plan.checkpoint_plan import WRITE_BYTES_PER_SECOND
from lmtrain.accounting.training_plan.evaluation_plan import FORWARD_SHARE
from lmtrain.accounting.training_plan.generation_plan import GenerationPlan
from lmtrain.accounting.training_plan.stage_rates import (
    HELD_FOR_LEARNING,
    INDEX_SHARE,
    LEARNED_BYTES_PER_SECOND,
    PASS_SECONDS,
    PREPARE_START_SECONDS,
    PREPARED_BYTES_PER_SECOND,
    START_SECONDS,
    TEXTS_AT_ONCE,
)


@dataclass(frozen=True, kw_only=True)
class PreparationWork:
    """Text for so many tokens to train on, and for held-out ones; `learned_bytes` of it teach a tokenizer."""

    train_tokens: float
    validation_share: float
    test_share: float
    text_bytes_per_token: float
    bytes_per_token: int
    learned_bytes: float = 0.0

    @property
    def num_tokens(self) -> float:
        """Return the tokens of all splits."""
        return self.train_tokens / (1 - self.validation_share - self.test_share)

    @property
    def validation_tokens(self) -> int:
        """Return those of the validation split."""
        return round(self.num_tokens * self.validation_share)

    @property
    def test_tokens(self) -> int:
        """Return those of the split of `lmtrain evaluate`."""
        return round(self.num_tokens * (self.test_share or self.validation_share))

    @property
    def text_bytes(self) -> int:
        """Return the bytes of the text."""
        return round(self.num_tokens * self.text_bytes_per_token)

    @property
    def seconds(self) -> float:
        """Return the time from text to shards, on a core."""
        learning = min(self.learned_bytes, self.text_bytes) / LEARNED_BYTES_PER_SECOND
        return PREPARE_START_SECONDS + learning + self.text_bytes / PREPARED_BYTES_PER_SECOND

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of the shards with their indices."""
        return round(self.num_tokens * self.bytes_per_token * (1 + INDEX_SHARE))

    @property
    def disk_bytes(self) -> int:
        """Return the same with the text waiting for its tokenizer."""
        return self.kept_bytes + round(min(HELD_FOR_LEARNING * self.learned_bytes, self.text_bytes))


@dataclass(frozen=True, kw_only=True)
class RowsToScore:
    """Rows of text scored each by itself; `text_bytes` of all of them, None: each as long as the context."""

    num_rows: int
    text_bytes: float | None = None

    def tokens(self, *, context_tokens: int, text_bytes_per_token: float) -> float:
        """Return the tokens of all rows."""
        most = self.num_rows * context_tokens
        return most if self.text_bytes is None else min(most, self.text_bytes / text_bytes_per_token + self.num_rows)


@dataclass(frozen=True, kw_only=True)
class EvaluationWork:
    """An evaluation's text to read and answers to write.

    `scores_own_split` is of the run's held-out text; `split_tokens` are of other prepared data. `num_answers` have
    `answer_tokens` each, at most, after prompts of `prompt_bytes` together. `counted` are lines on the figures,
    `uncounted` on parts of unknown size.
    """

    scores_own_split: bool = False
    split_tokens: int = 0
    text_bytes: int = 0
    rows: Sequence[RowsToScore] = ()
    num_answers: int = 0
    answer_tokens: int = 0
    prompt_bytes: int = 0
    is_bf16: bool = False
    counted: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

    @property
    def num_passes(self) -> int:
        """Return the passes of the answers, so many texts at once."""
        return math.ceil(self.num_answers / TEXTS_AT_ONCE) * self.answer_tokens

    def read_tokens(self, *, own_split: int, context_tokens: int, text_bytes_per_token: float) -> int:
        """Return the tokens of forward passes, prompts among them."""
        plain = (self.text_bytes + self.prompt_bytes) / text_bytes_per_token
        own = own_split if self.scores_own_split else 0
        of_rows = (
            rows.tokens(context_tokens=context_tokens, text_bytes_per_token=text_bytes_per_token) for rows in self.rows
        )
        return round(own + self.split_tokens + plain + sum(of_rows))

    def seconds(
        self,
        read_tokens: int,
        *,
        training_seconds_per_token: float,
        weight_bytes: float,
        memory_bytes_per_second: float | None,
    ) -> float:
        """Return the time of it on one device, with the command's start."""
        written = GenerationPlan(
            written_tokens=self.num_answers * self.answer_tokens,
            prompt_tokens=0,
            flops_per_step=0.0,
            num_passes=self.num_passes,
            weight_bytes=weight_bytes,
            memory_bytes_per_second=memory_bytes_per_second,
        )
        writing = written.seconds(step_seconds=training_seconds_per_token, tokens_per_step=1)
        reading = read_tokens * FORWARD_SHARE * training_seconds_per_token
        return START_SECONDS + reading + max(writing, self.num_passes * PASS_SECONDS)


def export_seconds(num_bytes: float, *, read_bytes: float) -> float:
    """Return the time of a folder of weights, read from a checkpoint and written."""
    return START_SECONDS + (read_bytes + num_bytes) / WRITE_BYTES_PER_SECOND
