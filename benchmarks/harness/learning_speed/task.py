"""What every loop learns from, and how long: the same shards, rows and order, one seed, a schedule of so many steps."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness.train_step.task import Task
from lmtrain.data.order import WindowOrder
from lmtrain.data.packing import Contiguous
from lmtrain.data.shards import Dataset, open_dataset
from lmtrain.data.windows import evaluation_windows
from lmtrain.tokenizers.loading import load_tokenizer

Predict = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class LearningTask(Task):
    """A task of the step's ruler, with prepared data instead of random tokens."""

    folder: str  # prepared shards
    seed: int  # of weights and of the order of rows
    lr_factor: float = 1.0  # of all learning rates of a peer
    words: tuple[str, ...] = ()  # typed after `train.py`, beside the default
    num_points: int = 10  # of the curve
    is_timed: bool = False  # turns of steps under a clock, rather than a run to its end

    @cached_property
    def dataset(self) -> Dataset:
        """Open the shards."""
        return open_dataset(self.folder)

    @cached_property
    def token_bytes(self) -> Tensor:
        """Return how many bytes of text each token stands for: [V]."""
        return torch.from_numpy(load_tokenizer(self.dataset.tokenizer_folder).token_bytes())

    def rows(self) -> Iterator[Tensor]:
        """Yield ids [B, T + 1], int64: what the Trainer reads with this seed, step by step."""
        rows = Contiguous().rows(self.dataset, context_tokens=self.context_tokens)
        order = WindowOrder(num_windows=rows.num_rows, seed=self.seed, fingerprint=rows.fingerprint)
        for step in itertools.count():
            positions = np.arange(step * self.num_sequences, (step + 1) * self.num_sequences)
            yield torch.from_numpy(rows.read(order(positions)).ids.astype(np.int64))

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets, [B, T] each."""
        for ids in self.rows():
            yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        """Return inputs and targets, [B, T] each, that predict every held-out token but the first once."""
        windows = evaluation_windows(self.dataset.split("validation"), context_tokens=self.context_tokens)
        batches: list[tuple[Tensor, Tensor]] = []
        for first in range(0, windows.num_windows, self.num_sequences):
            rows = [windows.window(first + row) for row in range(self.num_sequences)]
            inputs, targets = np.stack([row.inputs for row in rows]), np.stack([row.targets for row in rows])
            batches.append((torch.from_numpy(inputs), torch.from_numpy(targets)))
        return batches


class Referee(Protocol):
    """What a loop reports to: a clock of turns, or a run with points at which it is evaluated."""

    def step(self) -> None:
        """Hear that an optimizer step is over."""
        ...

    def say(self, **facts: object) -> None:
        """Hear a fact for the table."""
        ...

    def predict_with(self, predict: Predict) -> None:
        """Hear how the model turns inputs [B, T] into logits [B, T, V]."""
        ...


def load_task(path: Path) -> LearningTask:
    """Read a saved task."""
    told = json.loads(path.read_text())
    return LearningTask(**{**told, "words": tuple(told["words"])})
