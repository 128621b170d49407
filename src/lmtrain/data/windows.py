"""A split cut into windows: to train on, and to measure on so that each token but the first is predicted once.

`T context tokens`.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.shards import Ids, TokenSplit
from lmtrain.errors import ConfigurationError

IGNORED = -100


class EvaluationWindow(NamedTuple):
    """What the model reads and what it should predict: both [T], targets to leave out are -100."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]


def num_training_windows(num_tokens: int, context_tokens: int) -> int:
    """Return how many windows of T + 1 tokens, each starting T after the last, lie inside a split.

    Raises:
        ConfigurationError: Not even one: the context is longer than the split.
    """
    num_windows = (num_tokens - 1) // context_tokens
    if num_windows < 1:
        longest = num_tokens - 1
        nearest = 1 << (longest.bit_length() - 1) if longest > 0 else 0
        fix = f"nearest valid: {nearest}, or prepare more text" if nearest else "prepare more text"
        msg = (
            f"batch.context_tokens={context_tokens} needs {context_tokens + 1:,} tokens, the shards have {num_tokens:,}"
        )
        raise ConfigurationError(f"{msg}; {fix}.")
    return num_windows


def training_window(split: TokenSplit, window: int, context_tokens: int) -> Ids:
    """Return window w, tokens w x T to w x T + T: [T + 1]. Inputs and targets are its two ends."""
    return split.window(window * context_tokens, context_tokens + 1)


def training_windows(split: TokenSplit, windows: NDArray[np.int64], context_tokens: int) -> Ids:
    """Return many training windows: [B] -> [B, T + 1] of the shards' own integer type."""
    return split.windows(windows * context_tokens, context_tokens + 1)


@final
@dataclass(frozen=True)
class EvaluationWindows:
    """Windows that follow one another without overlap; those at or past the end are padded with targets of -100."""

    split: TokenSplit
    context_tokens: int
    num_targets: int

    @property
    def num_windows(self) -> int:
        """Return how many windows have a target."""
        return -(-self.num_targets // self.context_tokens)

    def window(self, window: int) -> EvaluationWindow:
        """Return one window; past the last one, a window without targets."""
        start = window * self.context_tokens
        num_targets = min(max(self.num_targets - start, 0), self.context_tokens)
        inputs = np.zeros(self.context_tokens, dtype=np.int64)
        targets = np.full(self.context_tokens, IGNORED, dtype=np.int64)
        if num_targets:
            ids = self.split.window(start, num_targets + 1)
            inputs[:num_targets] = ids[:-1]
            targets[:num_targets] = ids[1:]
        return EvaluationWindow(inputs=inputs, targets=targets)


def evaluation_windows(split: TokenSplit, *, context_tokens: int, max_tokens: int | None = None) -> EvaluationWindows:
    """Cut a split so that each of its first `max_tokens` tokens (None: all) but the very first is predicted once."""
    num_tokens = split.num_tokens if max_tokens is None else min(max_tokens, split.num_tokens)
    return EvaluationWindows(split=split, context_tokens=context_tokens, num_targets=max(num_tokens - 1, 0))
