"""Replica groups: jobs that train one model together, step by step, while some of them are lost and come back.

Each group is a job with its ranks, its run folder and its strategy. The groups meet by torchft
(https://github.com/pytorch/torchft): its lighthouse knows which of them are there, and a step is

    quorum                of n groups this one is number g; one that is behind takes the state of another
    forward, backward     micro-batches g, g + n, g + 2n, ... of the step, with the random numbers of one process
    all-reduce            gradients and the step's sums, by the ranks of the same number in all groups
    commit                otherwise a group was lost meanwhile, and the others repeat the step without it

so that a step has the tokens, the gradient and the loss of one process, with any number of groups.
"""

import importlib
import logging
import os
import socket
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Final, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor
from torch.distributed import ReduceOp, TCPStore

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.missing_package import require_package
from lmtrain.models.mixture_of_experts import balanced_layers
from lmtrain.parallel.gradients import local_part
from lmtrain.parallel.rank_reports import bit_sums, on_all_ranks
from lmtrain.parallel.sharded_strategy import FullyShardedStrategy
from lmtrain.training.step_loop import StepLoop
from lmtrain.training.step_metrics import summed

_LOG = logging.getLogger(__name__)
KEY: Final = "trainer.lighthouse"
CONNECT: Final = timedelta(seconds=20)
ANSWER: Final = timedelta(seconds=120)  # of a group that is there: a message, a state
QUORUM: Final = timedelta(seconds=600)  # until all groups that are there have come to the next step

MicroStep = Callable[[Any, int], object]


@final
class ReplicaGroups:
    """This job's place among the replica groups of a lighthouse."""

    def __init__(self, trainer: pl.Trainer, loop: StepLoop, *, lighthouse: str) -> None:
        """Hold the address of the lighthouse, `http://HOST:PORT`; the groups meet at the first step."""
        require_package(KEY, "torchft", extra="torchft")
        self._trainer, self._loop, self._lighthouse = trainer, loop, lighthouse
        self._manager: Any = None
        self._store: TCPStore | None = None
        self._num_groups = 0
        self._own_batches: Iterator[Any] | None = None  # since a state was taken: the loader is at another step

    def train(self, batches: Sequence[Any], micro_step: MicroStep) -> None:
        """Leave the gradients of a step, of all its micro-batches, and its sums.

        `micro_step` takes a micro-batch and its number, and adds its gradients.
        """
        if self._manager is None:
            self._module: Any = self._trainer.lightning_module
            self._callbacks: list[pl.Callback] = self._trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
            self._manager = self._meet()
        step = self._trainer.global_step
        if self._own_batches is not None:
            batches = self._read(len(batches))
        while True:
            self._manager.start_quorum()
            if self._trainer.global_step != step:
                step, batches = self._trainer.global_step, self._read(len(batches))
            self._note_number(step)
            own = self._check()
            parts = self._share(batches, micro_step)
            check = own.clone()
            for work in [self._manager.allreduce(one, reduce_op=ReduceOp.SUM) for one in (*parts, check)]:
                work.wait()
            if self._manager.should_commit():
                break
            self._forget()
        if not torch.equal(check, own * self._num_groups):
            raise ConfigurationError(
                f"{KEY}: the replica groups must have one configuration and the same weights, got others before step "
                f"{step + 1}; give every group the same command but for run.name."
            )
        self._module.step_metrics.add_micro_step(summed(parts[-1]))

    def end(self) -> None:
        """Leave the groups."""
        if self._manager is not None:
            self._manager.shutdown(wait=False)
            self._manager = None

    def _meet(self) -> Any:
        """Return torchft's manager of this rank; the first rank of a group speaks for it."""
        os.environ.setdefault("RUST_LOG", "warn")  # of ten lines per step otherwise
        logging.getLogger("torchft.manager").setLevel(logging.CRITICAL)  # a trace for each tensor of a lost group
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)  # of a state's bytes
        torchft, trainer = importlib.import_module("torchft"), self._trainer
        if trainer.global_rank == 0:
            self._store = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
        host, port = on_all_ranks((self._store.host, self._store.port) if self._store else None)[0]
        on_gpu = trainer.strategy.root_device.type == "cuda"
        group = (torchft.ProcessGroupNCCL if on_gpu else torchft.ProcessGroupGloo)(timeout=ANSWER)
        try:
            manager = torchft.Manager(
                group,
                load_state_dict=self._take,
                state_dict=self._state,
                min_replica_size=1,
                use_async_quorum=False,
                init_sync=False,  # the same seed, the same weights
                rank=trainer.global_rank,
                world_size=trainer.world_size,
                store_addr=host,
                store_port=port,
                lighthouse_addr=self._lighthouse,
                timeout=ANSWER,
                quorum_timeout=QUORUM,
                connect_timeout=CONNECT,
            )
        except RuntimeError as problem:
            start = "torchft_lighthouse --min_replicas 1 --join_timeout_ms 10000"
            raise EnvironmentProblem(f"{KEY}: {problem}. Start the lighthouse there: {start}") from problem
        manager.load_state_dict({"step": trainer.global_step, "batches_committed": 0})
        return manager

    def _share(self, batches: Sequence[Any], micro_step: MicroStep) -> list[Tensor]:
        """Train on this group's micro-batches; return what the groups add up: gradients, counts, the step's sums."""
        module, trainer = self._module, self._trainer
        place, num_groups = self._manager.participating_rank(), self._manager.num_participants()
        first = trainer.global_step * len(batches)
        numbers = [*range(place, len(batches), num_groups)]
        for number in numbers or [0]:  # a group without any contributes zeros
            is_last = number == (numbers or [0])[-1]
            waits = isinstance(trainer.strategy, ParallelStrategy) and not is_last
            with trainer.strategy.block_backward_sync() if waits else nullcontext():  # pyright: ignore[reportAttributeAccessIssue]
                module.on_train_batch_start(batches[number], number)
                micro_step(batches[number], first + number)
        parts = [local_part(one.grad) for one in module.language_model.parameters() if one.grad is not None]
        parts += self._counts()
        parts.append(module.step_metrics.take_micro_steps())
        for part in parts if not numbers else []:
            part.zero_()
        return parts

    def _forget(self) -> None:
        """Leave nothing of a step that is to be repeated."""
        for parameter in self._module.language_model.parameters():
            parameter.grad = None
        for count in self._counts():
            count.zero_()

    def _counts(self) -> list[Tensor]:
        """Return each layer's tokens of its experts, by which routers are balanced after a step."""
        layers = balanced_layers(self._module.language_model)
        return [layer.num_chosen for layer in layers if layer.num_chosen is not None]

    def _note_number(self, step: int) -> None:
        num_groups = self._manager.num_participants()
        if num_groups != self._num_groups and self._trainer.is_global_zero:
            _LOG.warning("%s from step %d on", format_count(num_groups, "replica group"), step + 1)
        self._num_groups = self._module.step_metrics.num_groups = num_groups

    def _check(self) -> Tensor:
        """Return a number of the weights' bits, this rank's, and of the settings, int64 [1]."""
        module, data = self._module, getattr(self._trainer, "datamodule", None)
        settings = repr((module.total_steps, module.step.batch, getattr(data, "identity", None)))
        return bit_sums(module.language_model.parameters()).sum().view(1) + zlib.crc32(settings.encode())

    def _read(self, num_batches: int) -> list[Any]:
        """Return the micro-batches of the Trainer's step."""
        assert self._own_batches is not None
        to_device = self._trainer.strategy.batch_to_device
        return [to_device(next(self._own_batches)) for _ in range(num_batches)]

    @torch.no_grad()
    def _state(self) -> dict[str, Any]:
        """Return this rank's part of the state between two steps, for the same rank of another group."""
        strategy = self._trainer.strategy
        state = strategy.lightning_module_state_dict(), strategy.optimizer_state(self._trainer.optimizers[0])
        return {
            "step": self._trainer.global_step,
            "state": _each(lambda _, tensor: local_part(tensor.detach()), state, state),
            "precision": self._trainer.precision_plugin.state_dict(),
            "callbacks": {one.state_key: one.state_dict() for one in self._callbacks},
        }

    def _take(self, received: dict[str, Any]) -> None:
        """Go on from the state of another group."""
        trainer, strategy, optimizer = self._trainer, self._trainer.strategy, self._trainer.optimizers[0]
        if isinstance(strategy, FullyShardedStrategy):
            own = strategy.lightning_module_state_dict(), strategy.optimizer_state(optimizer)
            weights, state = _each(_filled, own, received["state"])
            strategy.take_weights(weights)
            strategy.take_optimizer_state(optimizer, state)
        else:
            weights, state = received["state"]
            strategy.load_model_state_dict({"state_dict": weights}, strict=True)
            strategy.load_optimizer_state_dict({"optimizer_states": [state]})
        trainer.precision_plugin.load_state_dict(received["precision"])
        for one in self._callbacks:
            if state := received["callbacks"].get(one.state_key):
                one.load_state_dict(state)
        self._loop.go_to(received["step"])
        self._own_batches = iter(trainer.datamodule.train_dataloader())  # pyright: ignore[reportAttributeAccessIssue]


def _filled(own: Tensor, part: Tensor) -> Tensor:
    local_part(own).copy_(part)
    return own


def _each(change: Callable[[Any, Tensor], Tensor], own: Any, state: Any) -> Any:
    """Return a state with each tensor changed, given the one in its place in `own`."""
    if isinstance(state, Tensor):
        return change(own, state)
    if isinstance(state, dict):
        return {key: _each(change, own[key], value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_each(change, one, value) for one, value in zip(own, state, strict=True))
    return state
