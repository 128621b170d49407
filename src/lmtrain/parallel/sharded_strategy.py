"""Lightning's strategy for models in parts: when gradients are reduced, and checkpoints of every rank's part.

Built on Lightning's ModelParallelStrategy with five of its behaviours replaced: it reduces gradients on every
micro-batch, counts nodes for `data_parallel_size="auto"`, writes sharded checkpoints straight into their final folder,
lets a full disk end the run or leave a rank waiting, and unpickles a checkpoint's content (2.6.6).
"""

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from operator import call
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.rank_reports import first_problem
from lmtrain.parallel.shard_reading import part_optimizer_state, part_weights, read_metadata, read_shards
from lmtrain.parallel.shard_writing import plan_shards
from lmtrain.storage.checkpoint_layout import OPTIMIZERS, REST, SHARDED, STATE, WEIGHTS, sharded_name
from lmtrain.storage.hashed_folder import aside_of, not_written, require_whole, start_aside
from lmtrain.storage.plain_values import load_plain, load_state

Background = Callable[[Callable[[], int]], object]


class FullyShardedStrategy(ModelParallelStrategy):
    """ModelParallelStrategy with one gradient reduction a step, or a micro-step, and atomic, verified checkpoints."""

    writes_own_checkpoints = True

    def __init__(self, *, num_ranks: int, timeout_seconds: float, reduce_every_micro_step: bool = False) -> None:
        """Shard over `num_ranks`; a rank silent for the timeout ends the run."""
        super().__init__(
            data_parallel_size=num_ranks,
            tensor_parallel_size=1,
            timeout=timedelta(seconds=timeout_seconds),
        )
        self._timeout_seconds, self._reduces_every_micro_step = timeout_seconds, reduce_every_micro_step

    @contextmanager
    def block_backward_sync(self) -> Generator[None]:
        """Accumulate gradients locally until a step's last micro-batch, or shards' own where each is scattered.

        Copies of shards are averaged at the last one either way.
        """
        self._set_sync(is_on=False)
        try:
            yield
        finally:
            self._set_sync(is_on=True)

    def _set_sync(self, *, is_on: bool) -> None:
        assert self.lightning_module is not None
        for module in self.lightning_module.children():
            if not isinstance(module, FSDPModule):
                continue
            if self._reduces_every_micro_step:
                module.set_requires_all_reduce(is_on)
            else:
                module.set_requires_gradient_sync(is_on)

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the module's state as it is; Lightning's own waits for a copy on the host."""
        assert self.model is not None
        return get_model_state_dict(self.model)

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of an optimizer's state as it is."""
        return self.named_state(optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer)

    def named_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of an optimizer's state by names, with the groups of a checkpoint."""
        assert self.model is not None
        return get_optimizer_state_dict(self.model, optimizer)

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Background | None = None
    ) -> None:
        """Write every rank's shards aside, then commit them under the final name from rank 0.

        `storage_options` is given how on each rank, to do it later.
        """
        final = Path(self.broadcast(str(filepath)))
        write = storage_options or call  # at once
        problem = self._problem_of(partial(start_aside, aside_of(final)), on_rank_0=True)
        problem = problem or self._problem_of(lambda: write(self._plan(checkpoint, final)))
        if problem:
            shutil.rmtree(aside_of(final), ignore_errors=True)
            raise not_written(final, problem)

    @override
    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Fill model and optimizers from a checkpoint true to its manifest, sharded or not; return the rest of it."""
        del weights_only
        path = Path(self.broadcast(str(checkpoint_path)))
        is_sharded = not (path / STATE).is_file()
        checks = (partial(require_whole, path), partial(read_metadata, path / SHARDED))
        for check in checks if is_sharded else checks[:1]:
            if problem := self._problem_of(check, on_rank_0=True):
                raise EnvironmentProblem(problem)
        if is_sharded:
            self._restore_shards(path / SHARDED)
            return load_plain(path / SHARDED / REST)
        whole: dict[str, Any] = load_state(path / STATE, map_location="cpu", mmap=True)  # a rank reads its part alone
        self._restore_whole(whole)
        return {key: value for key, value in whole.items() if key not in {WEIGHTS, OPTIMIZERS}}

    def _restore_shards(self, sharded: Path) -> None:
        """Do Lightning's part with torch's interfaces: its own loading unpickles (2.6.6)."""
        assert self.model is not None
        there, own = read_metadata(sharded).state_dict_metadata, get_model_state_dict(self.model)
        asked = {name: (value, there.get(f"{WEIGHTS}.{name}")) for name, value in own.items()}
        weights = {WEIGHTS: {name: _as_saved(value, facts) for name, (value, facts) in asked.items() if facts}}
        read_shards(weights, sharded)
        self.take_weights(weights[WEIGHTS])
        for index, optimizer in enumerate(self.optimizers):
            state = {sharded_name(index): self.named_state(optimizer)}
            read_shards(state, sharded)
            self.take_optimizer_state(optimizer, state[sharded_name(index)])

    def _restore_whole(self, whole: dict[str, Any]) -> None:
        """Cut this rank's part out of a state, whole on every rank."""
        assert self.model is not None
        self.take_weights(part_weights(whole[WEIGHTS], get_model_state_dict(self.model)))
        for optimizer, state in zip(self.optimizers, whole[OPTIMIZERS], strict=True):
            self.take_optimizer_state(optimizer, part_optimizer_state(state, self.named_state(optimizer)))

    def take_weights(self, weights: dict[str, Any]) -> None:
        """Fill the module from this rank's part of the weights."""
        assert self.model is not None
        assert self.lightning_module is not None
        self.model.load_state_dict(weights, strict=self.lightning_module.strict_loading)

    def take_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Fill an optimizer from this rank's part of its state."""
        assert self.model is not None
        options = StateDictOptions(cpu_offload=True)
        set_optimizer_state_dict(self.model, optimizer, optim_state_dict=state, options=options)

    def _plan(self, checkpoint: dict[str, Any], final: Path) -> Callable[[], int]:
        """Return this rank's values to write, in Lightning's layout."""
        rest = {key: value for key, value in checkpoint.items() if key not in {WEIGHTS, OPTIMIZERS}}
        optimizers = {sharded_name(index): state for index, state in enumerate(checkpoint[OPTIMIZERS])}
        return plan_shards(
            {WEIGHTS: checkpoint[WEIGHTS], **optimizers},
            final,
            rank=self.global_rank,
            timeout_seconds=self._timeout_seconds,
            rest=rest if self.is_global_zero else {},
        )

    def _problem_of(self, action: Callable[[], object], *, on_rank_0: bool = False) -> str | None:
        """Let each rank act, or the first alone; return one problem on all."""
        return first_problem(action, acts=self.is_global_zero or not on_rank_0)


def _as_saved(value: Any, facts: object) -> Any:
    """Return a place for a saved value: its own, or one of another length for a buffer that takes such."""
    if not isinstance(facts, TensorStorageMetadata) or isinstance(value, DTensor) or value.shape == facts.size:
        return value
    return torch.empty(facts.size, dtype=value.dtype)
