"""Lightning's strategy for workers: a rank each, with gradients, optimizer state and weights of its own."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from typing_extensions import override

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.rank_reports import first_problem
from lmtrain.parallel.workers.outer_step import OuterStep
from lmtrain.parallel.workers.worker_files import (
    MOMENTUM,
    OUTER,
    OWN,
    SENT_BYTES,
    WriteWorker,
    read_worker,
    state_of_worker,
)
from lmtrain.storage.hashed_folder import aside_of, not_written, require_whole, start_aside

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

        Raises:
            EnvironmentProblem: On every rank, when one of them could not write.
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
        """Return this worker's state from a checkpoint of any strategy, true to its manifest.

        Raises:
            EnvironmentProblem: On every rank, when it does not match, or names code to run.
        """
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
