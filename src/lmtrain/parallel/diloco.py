"""DiLoCo: one worker per rank with its own gradients, optimizer state and weights; an outer step joins them.

A checkpoint is one `state.pt` with the global weights and the first worker's optimizer, which every strategy,
`generate` and `export` read. Next to it each other worker has a file, and the outer momentum and the worker's weights
are under `OUTER`.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch.strategies import DDPStrategy
from typing_extensions import override

from lmtrain.accounting.model.optimizer_state import FP32_BYTES
from lmtrain.accounting.options.outer_settings import DELTA_BYTES, DeltaFormat, require_outer, require_turns
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.outer_step import OuterStep, fragments_of
from lmtrain.parallel.rank_reports import first_problem, num_bytes_in, write_part
from lmtrain.parallel.shard_reading import read_whole
from lmtrain.parallel.strategy import Parallelism, whole
from lmtrain.storage.checkpoint_layout import SHARDED, STATE, WEIGHTS
from lmtrain.storage.hashed_folder import aside_of, not_written, require_whole, start_aside
from lmtrain.storage.plain_values import load_plain, load_state

OUTER: Final = "outer_step"
OWN: Final = "own"  # weights of a worker
MOMENTUM: Final = "momentum"
SENT_BYTES: Final = "sent_bytes"  # by each worker, since the run began
NUM_WORKERS: Final = "num_workers"


@dataclass(frozen=True, kw_only=True)
class WriteWorker:
    """Write one worker's file of a checkpoint; the first one waits for the others, and commits the whole."""

    final: Path
    rank: int
    num_workers: int
    timeout_seconds: float
    state: dict[str, Any]

    def __call__(self) -> int:
        """Return the bytes of this worker's file, on the first rank of the whole checkpoint."""
        file = aside_of(self.final) / (worker_file(self.rank) if self.rank else STATE)

        def write() -> int:
            torch.save(self.state, file)
            return file.stat().st_size

        num_bytes = write_part(
            self.final,
            rank=self.rank,
            num_ranks=self.num_workers,
            timeout_seconds=self.timeout_seconds,
            write=write,
            facts=self.state.get("lmtrain", {}),
        )
        return num_bytes_in(self.final) if num_bytes is None else num_bytes


def worker_file(rank: int) -> str:
    """Return the name of a worker's file; the first one's state is in the run's one file."""
    return f"worker_{rank:05d}.pt"


def state_of_worker(
    checkpoint: dict[str, Any], outer: dict[str, Any], *, rank: int, num_workers: int
) -> dict[str, Any]:
    """Return a worker's part of a checkpoint: all of it on the first rank, the differences on the others."""
    if rank == 0:
        return {**checkpoint, OUTER: {**outer, NUM_WORKERS: num_workers}}
    own = {key: value for key, value in checkpoint.items() if key != WEIGHTS}
    return {**own, OUTER: {OWN: outer[OWN]}}


def read_worker(path: Path, *, rank: int, num_workers: int) -> dict[str, Any]:
    """Return a worker's state, from a checkpoint of any strategy.

    Of another number of workers each takes the global weights and the first one's optimizer.
    """
    if (path / SHARDED).is_dir():
        return read_whole(path / SHARDED)
    whole: dict[str, Any] = load_state(path / STATE, map_location="cpu")
    outer: dict[str, Any] = whole.get(OUTER, {})
    if outer.get(NUM_WORKERS) != num_workers:  # also where one process or another strategy wrote it
        return {**whole, OUTER: {**outer, OWN: None}}
    if rank == 0:
        return whole
    own: dict[str, Any] = load_plain(path / worker_file(rank), map_location="cpu")
    return {**whole, **own, OUTER: {**outer, **own[OUTER]}}


Background = Callable[[Callable[[], int]], object]


class WorkersStrategy(DDPStrategy):
    """DDPStrategy without DDP's wrapper, with a checkpoint of every worker's own state."""

    writes_own_checkpoints = True

    def __init__(self, outer: OuterStep, *, timeout: timedelta) -> None:
        """Save and restore `outer`; a rank silent for the timeout ends the run."""
        super().__init__(timeout=timeout)
        self._outer = outer
        self._timeout_seconds = timeout.total_seconds()

    @override
    def configure_ddp(self) -> None:
        """Leave the model as it is: gradients stay with their worker."""

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the module's state with the global weights in place of this worker's."""
        assert self.lightning_module is not None
        state = self.lightning_module.state_dict(keep_vars=True)
        return {name: self._outer.global_of(value) for name, value in state.items()}

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Background | None = None
    ) -> None:
        """Write every worker's file aside, then commit them under the final name from rank 0.

        `storage_options` is given how on each rank, to do it later.
        """
        final = Path(self.broadcast(str(filepath)))
        outer: dict[str, Any] = {
            MOMENTUM: self._outer.momentum(),
            SENT_BYTES: self._outer.sent_bytes,
            OWN: self._outer.own(),
        }
        write = WriteWorker(
            final=final,
            rank=self.global_rank,
            num_workers=self.world_size,
            timeout_seconds=self._timeout_seconds,
            state=state_of_worker(checkpoint, outer, rank=self.global_rank, num_workers=self.world_size),
        )
        problem = first_problem(partial(start_aside, aside_of(final)), acts=self.is_global_zero)
        problem = problem or first_problem(write if storage_options is None else partial(storage_options, write))
        if problem:
            shutil.rmtree(aside_of(final), ignore_errors=True)
            raise not_written(final, problem)

    @override
    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Return this worker's state from a checkpoint of any strategy, true to its manifest."""
        del weights_only
        path = Path(self.broadcast(str(checkpoint_path)))
        if problem := first_problem(partial(require_whole, path), acts=self.is_global_zero):
            raise EnvironmentProblem(problem)
        return read_worker(path, rank=self.global_rank, num_workers=self.world_size)

    @override
    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """Fill the module with the global weights, then the outer step and this worker with their own."""
        super().load_model_state_dict(checkpoint, strict=strict)
        outer = checkpoint.get(OUTER, {})
        self._outer.resume(momentum=outer.get(MOMENTUM), own=outer.get(OWN), sent_bytes=outer.get(SENT_BYTES, 0.0))


def diloco(
    *,
    num_ranks: int,
    every_steps: int,
    num_fragments: int = 1,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.0,
    delta: DeltaFormat = "fp32",
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Train a worker on each rank; each of the model's fragments meets once in `every_steps` steps.

    `delta` is the format of the deltas as they are sent.
    """
    spread = diloco_facts(
        every_steps=every_steps,
        num_fragments=num_fragments,
        outer_lr=outer_lr,
        outer_momentum=outer_momentum,
        delta=delta,
    )
    spread.require_ranks(num_ranks)
    outer = OuterStep(
        every_steps=every_steps, num_fragments=num_fragments, lr=outer_lr, momentum=outer_momentum, delta=delta
    )
    return Parallelism(
        name="diloco",
        strategy=WorkersStrategy(outer, timeout=timedelta(seconds=timeout_seconds)),
        parallelize=whole,
        spread=spread,
        require=partial(fragments_of, num_fragments=num_fragments),
        outer=outer,
    )


def diloco_facts(
    *,
    every_steps: int = 1,
    num_fragments: int = 1,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.0,
    delta: DeltaFormat = "fp32",
) -> ModelSpread:
    """Keep the whole model and the global weights on every rank, and send deltas now and then."""
    require_turns(every_steps, num_fragments)
    require_outer(outer_lr, outer_momentum)
    return ModelSpread(
        meets_every_steps=every_steps,
        gradient_bytes=DELTA_BYTES[delta],
        kept_bytes=FP32_BYTES * (2 if outer_momentum else 1),  # the global weight, and its momentum
        least_ranks=2,
    )
