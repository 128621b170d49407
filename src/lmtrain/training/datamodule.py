"""Rows of prepared data as batches: pure functions of the step, so resume needs no loader state.

The rows are the packing's choice, their order the mixture's; see training_batches for how a step's share is found. `B
micro-batch sequences, T context tokens`.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from lmtrain.accounting.batches import Batch, BatchPlan, plan_batches
from lmtrain.accounting.options.ranges import require_whole
from lmtrain.accounting.quantities import format_count
from lmtrain.data.dataset_folder import BackgroundCheck
from lmtrain.data.interleave import Placed, ScheduledInterleave, phases_going_on
from lmtrain.data.manifest import DatasetFolder
from lmtrain.data.mixture import MixedRows, Mixture, open_mixture, placed, single_source
from lmtrain.data.order import WindowOrder
from lmtrain.data.packing import Contiguous, Packing
from lmtrain.data.rows import RowBatch, Rows, require_known, with_known_ids
from lmtrain.data.shards import Dataset, open_dataset
from lmtrain.errors import ConfigurationError
from lmtrain.training.objectives.reference import ReferenceScores
from lmtrain.training.token_batch import TokenBatch
from lmtrain.training.training_batches import Examples, Order, RankRows, TrainingBatches, worker_loader


class StepRows(NamedTuple):
    """A step's rows [G, T + 1], their numbers [G], and the names of their sources [G] in a mixture, none of one."""

    numbers: NDArray[np.int64]
    rows: RowBatch
    sources: list[str]


class TokenDataModule(pl.LightningDataModule):
    """Serve training batches and held-out batches from a prepared folder, or from several of them mixed.

    A training batch is a tensor of ids [B, T + 1] in the data's type, or a `TokenBatch` where there are documents or a
    loss mask; `training_tokens` makes int64 inputs and targets of either. The batches never end: a Trainer's
    `max_steps`, or a callback such as `TokenBudget`, ends training.

    Example:
        >>> data = lmtrain.data.TokenDataModule("data/my_text", context_tokens=1024, micro_batch_sequences=8)
        >>> lightning.Trainer(max_steps=1000, use_distributed_sampler=False).fit(module, datamodule=data)
        >>> for batch in data.train_dataloader(): ...  # in a loop without a Trainer
    """

    def __init__(
        self,
        folder: DatasetFolder | Path | str | Mixture,
        *,
        batch: BatchPlan | None = None,
        context_tokens: int | None = None,
        micro_batch_sequences: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
        packing: Packing | None = None,
    ) -> None:
        """Hold the folder.

        `num_workers` counts loader processes a rank (0 loads in the training process); `packing` None is contiguous.
        `batch` None is planned for the Trainer's ranks and accumulation from `context_tokens` (T, None: 1,024) and
        `micro_batch_sequences` (B, None: 8).
        """
        super().__init__()
        least = {"context_tokens": 1, "micro_batch_sequences": 1, "seed": 0, "num_workers": 0}
        values = (context_tokens, micro_batch_sequences, seed, num_workers)
        for (name, low), value in zip(least.items(), values, strict=True):
            if value is not None:
                require_whole(f"data.{name}", value, at_least=low)
        if batch is not None and (context_tokens, micro_batch_sequences) != (None, None):
            raise ConfigurationError(
                "data.context_tokens and data.micro_batch_sequences belong to batch; set them there."
            )
        folder = Path(folder) if isinstance(folder, str) else folder
        one = not isinstance(folder, Mixture)
        self.mixture = single_source(open_dataset(folder)) if one else folder
        self.dataset: Dataset = self.mixture.main
        self.total_steps: int | None = None  # of the run, to divide by a schedule of weights
        self._phases: list[Placed] | None = None  # as they were placed before; None: by total_steps
        self._given_batch, self._row_shape = batch, (context_tokens or 1024, micro_batch_sequences or 8)
        self._seed = seed
        self._num_workers = num_workers
        self._packing = packing or Contiguous()
        self._check: BackgroundCheck | None = None
        self.examples = Examples()
        self.references: ReferenceScores | None = None

    @override
    def setup(self, stage: str = "fit") -> None:
        """Do nothing: the folder is open."""

    @property
    def _place(self) -> Any:
        """The Trainer, or a single rank at its first step in a loop without one."""
        return self.trainer or SimpleNamespace(world_size=1, global_rank=0, global_step=0, accumulate_grad_batches=1)

    @property
    def _batch(self) -> BatchPlan:
        if self._given_batch is not None:
            return self._given_batch
        context_tokens, num_sequences = self._row_shape
        num_ranks = self._place.world_size
        tokens = context_tokens * num_sequences * num_ranks * self._place.accumulate_grad_batches
        shape = Batch(context_tokens=context_tokens, tokens_per_step=tokens, micro_batch_sequences=num_sequences)
        return plan_batches(shape, num_ranks=num_ranks)

    @property
    def identity(self) -> dict[str, str]:
        """Name the facts that decide a step's tokens, apart from seed and batch."""
        names = {"data.fingerprint": self.mixture.fingerprint, "packing": repr(self._packing)}
        if len(self.mixture.datasets) > 1:
            names["data.sources"] = self.mixture.describe_weights()
        return names

    def train_dataloader(self) -> Iterable[Tensor | TokenBatch]:
        """Return an endless loader that starts at the Trainer's step, at the first without a Trainer."""
        if self._place.global_rank == 0 and self._check is None:
            self._check = BackgroundCheck(self._datasets)
        rows, order = self.rows_in_order()
        rank_rows = RankRows(
            order,
            batch=self._batch,
            rank=self._batch.data_rank(self._place.global_rank),
            start_step=self._place.global_step,
        )
        if self._num_workers:
            return worker_loader(rows, rank_rows, num_workers=self._num_workers)
        return TrainingBatches(rows, rank_rows)

    def rows_of_step(self, step: int) -> StepRows:
        """Return the rows of one step (from 0) in its order, those of all ranks."""
        rows, order = self.rows_in_order()
        num_sequences = self._batch.sequences_per_step
        first = self._batch.number_of(step) * num_sequences
        numbers = order(np.arange(first, first + num_sequences))
        names = [*self.mixture.datasets]
        sources = [names[source] for source in rows.sources_of(numbers)] if isinstance(rows, MixedRows) else []
        return StepRows(numbers, rows.read(numbers), sources)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing to save; called before each checkpoint, it lets none be written on damaged data.

        Raises:
            DataError: A file of the data has changed since it was written.
        """
        if self._check is not None:
            self._check.require_whole()
        return {}

    @property
    def train_tokens(self) -> int:
        """Return how many tokens all sources have to train on."""
        return sum(dataset.split("train").num_tokens for dataset in self._datasets)

    @property
    def epoch_tokens(self) -> int:
        """Return the tokens of all rows of all sources once, padding included."""
        context_tokens = self._batch.context_tokens
        return sum(self._packing.epoch_tokens(dataset, context_tokens=context_tokens) for dataset in self._datasets)

    def data_lines(self) -> list[str]:
        """Return the folder and the tokens of each source, a line each."""
        return [f"data: {dataset.described}" for dataset in self._datasets]

    def packing_lines(self) -> list[str]:
        """Return the shares of text cut and padded by the packing, a line a source; builds its index for that."""
        reports = [
            self._packing.report(dataset, context_tokens=self._batch.context_tokens) for dataset in self._datasets
        ]
        return [report for report in reports if report]

    def loss_lines(self) -> list[str]:
        """Return the share of learned tokens, a line a source of conversations."""
        splits = [(dataset.manifest.name, dataset.split("train")) for dataset in self._datasets]
        return [
            f"loss on {split.loss_share():.1%} of the tokens of {name}, the assistant's words"
            for name, split in splits
            if split.has_loss_mask
        ]

    def source_epochs(self, num_steps: int) -> dict[str, float]:
        """Return how many times the first steps read each source of a mixture; empty for a single data set."""
        if len(self._datasets) == 1:
            return {}
        counts = self._interleave().counts(num_steps * self._batch.sequences_per_step).tolist()
        sources = [self._packing.rows(dataset, context_tokens=self._batch.context_tokens) for dataset in self._datasets]
        names = self.mixture.datasets
        return {name: count / rows.num_rows for name, count, rows in zip(names, counts, sources, strict=True)}

    def sources_line(self, num_steps: int) -> str | None:
        """Return the epochs of every source of a mixture in the first steps, in words."""
        epochs = self.source_epochs(num_steps)
        listed = ", ".join(f"{name} {number:.3g}" for name, number in epochs.items())
        return (
            f"data=mixture ({self.mixture.describe_weights()}): epochs in {format_count(num_steps, 'step')}: {listed}"
            if listed
            else None
        )

    def held_out_tokens(self, split: str) -> list[int]:
        """Return the tokens of a split, of each source with it."""
        splits = [dataset.manifest.splits.get(split) for dataset in self._datasets]
        return [found.num_tokens for found in splits if found is not None]

    def held_out_batches(
        self, split: str, *, max_tokens: int | None = None, source: str | None = None
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield this rank's (inputs, targets), both [B, T] int64, in windows as the packing cuts them.

        Every rank yields the same number of batches; targets beyond the end or without loss are -100. `max_tokens` None
        reads all; `source` None is the first. Where documents do not see one another in training,
        a third tensor counts them: int32 [B, T].
        """
        dataset = self.dataset if source is None else self.mixture.datasets[source]
        windows = self._packing.held_out(
            dataset, split, context_tokens=self._batch.context_tokens, max_tokens=max_tokens
        )
        num_sequences = min(self._batch.sequences_per_micro_step, max(1, windows.num_windows))
        stride = num_sequences * self._batch.num_data_ranks
        for start in range(0, windows.num_windows, stride):
            first = start + self._batch.data_rank(self._place.global_rank) * num_sequences
            rows = [windows.window(first + row) for row in range(num_sequences)]
            parts = [np.stack(part) for part in zip(*rows, strict=True) if part[0] is not None]
            for ids in parts[:2]:
                require_known(ids, dataset.manifest.vocab_size)
            yield tuple(torch.from_numpy(part) for part in parts)

    def rows_in_order(self) -> tuple[Rows, Order]:
        """Return the rows to train on, and their order."""
        context_tokens = self._batch.context_tokens
        sources = [
            with_known_ids(self._packing.rows(dataset, context_tokens=context_tokens), dataset.manifest)
            for dataset in self._datasets
        ]
        if len(sources) == 1:
            rows = sources[0]
            examples = self.examples
            order = WindowOrder(
                num_windows=rows.num_rows // examples.rows_together, seed=self._seed, fingerprint=rows.fingerprint
            )
            if self.references is not None:
                rows = self.references.beside(rows)
            return rows, examples.ordered(order, rows_per_step=self._batch.sequences_per_step)
        dtype = max((dataset.manifest.dtype for dataset in self._datasets), key=lambda name: int(name[4:]))
        mixed = MixedRows(sources, interleave=self._interleave(), seed=self._seed, dtype=dtype)
        return mixed, mixed.order

    def go_on(self, earlier: Sequence[Placed], *, step: int) -> None:
        """Keep the order of a mixture in the steps that were trained by `earlier` phases of the same sources."""
        until = self._batch.number_of(step) * self._batch.sequences_per_step
        self._phases = phases_going_on(self.placed_phases, earlier=earlier, until=until)

    @property
    def placed_phases(self) -> list[Placed]:
        """Return the first position and the weights of each phase of a mixture."""
        if self._phases is not None:
            return self._phases
        phases = self.mixture.phases
        assert self.total_steps is not None or len(phases) == 1, "a schedule needs total_steps"
        num_positions = (self.total_steps or 0) * self._batch.sequences_per_step
        return placed(phases, num_positions)

    def _interleave(self) -> ScheduledInterleave:
        return ScheduledInterleave(self.placed_phases)

    @property
    def _datasets(self) -> list[Dataset]:
        return list(self.mixture.datasets.values())


def mixture(
    *,
    sources: dict[str, dict[str, Any]],
    schedule: list[dict[str, Any]] | None = None,
    batch: BatchPlan,
    seed: int,
    num_workers: int = 0,
    packing: Packing | None = None,
) -> TokenDataModule:
    """Mix several prepared folders, each {path, weight}, by weights in tokens; schedule lists {from, weights}.

    The run's own bits per byte are of the first source.
    """
    mixed = open_mixture(sources, schedule or [])
    return TokenDataModule(folder=mixed, batch=batch, seed=seed, num_workers=num_workers, packing=packing)
