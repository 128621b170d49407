"""One rank's real step without its devices: build, transforms, strategy, forward, backward and optimizer, recorded.

The tensors are fake, with shapes and no bytes, and the other ranks do not exist. The second step is recorded: by then
the optimizer has its state.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from lmtrain.accounting.batches import BatchPlan
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.strategy import Parallelism
from lmtrain.simulate.compiled_graph import compile_recorded
from lmtrain.simulate.kernel_costs import Formats
from lmtrain.simulate.live_memory import tensors_in
from lmtrain.simulate.measured_facts import fake_tensors
from lmtrain.simulate.recorder import Recorded, Recorder
from lmtrain.training.module import CausalLMModule
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.transforms import ModelTransforms


@contextmanager
def fake_ranks(num_ranks: int) -> Generator[DeviceMesh]:
    """Be rank 0 of `num_ranks`, with messages to nobody, and give a strategy's mesh as Lightning would."""
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # advice for torch's own developers
    dist.init_process_group("fake", rank=0, world_size=num_ranks)
    try:
        yield init_device_mesh("cpu", (num_ranks, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    finally:
        dist.destroy_process_group()


class FirstChunk(TorchFunctionMode):
    """Gives the first chunk of a tensor in the place of every other one: the only one read by rank 0.

    FSDP2 cuts each parameter into as many chunks as there are ranks (torch 2.13): for 16,384 ranks a minute of views.
    """

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.chunk:
            return _first_chunks(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _first_chunks(input: torch.Tensor, chunks: int, dim: int = 0) -> list[torch.Tensor]:  # noqa: A002  as torch calls it
    return [input.narrow(dim, 0, -(-input.shape[dim] // chunks))] * chunks


MICRO_STEPS: Final = 2  # simulated of a step: one to add gradients up, and the last to send them


@dataclass(frozen=True, kw_only=True)
class SimulatedRank:
    """The parts of a rank's step: how to build the model on meta, its module, its transforms and its strategy.

    `is_compiled` compiles each block, and the head with the loss.
    """

    build: Callable[[], LanguageModel]
    make_module: Callable[[LanguageModel], CausalLMModule]
    transforms: ModelTransforms
    parallelism: Parallelism
    precision: PrecisionPlugin
    batch: BatchPlan
    formats: Formats = field(default_factory=Formats)
    is_compiled: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """A step's micro-steps (at most MICRO_STEPS of them) and its end, each with events and peaks."""

    micro_steps: Sequence[Recorded]
    end: Recorded


def record_step(rank: SimulatedRank, *, num_blocks: int) -> RecordedStep:
    """Record the second step of rank 0, of a model cut to `num_blocks`."""
    with torch.device("meta"):
        model = rank.build()
    del model.blocks[num_blocks:]
    recorder, transforms = Recorder(rank.formats), rank.transforms
    if rank.is_compiled:
        transforms = replace(transforms, compile=partial(compile_recorded, recorder=recorder))
    with fake_ranks(rank.batch.num_ranks) as mesh:
        fakes = fake_tensors()
        with fakes:
            model.to_empty(device="cpu")
            model.initialize_weights(torch.Generator().manual_seed(0))
        with FirstChunk():  # outside of the mode: a mesh reads its numbers
            model = transforms.apply(model, mesh)
        with fakes:
            return _Steps(rank, model, recorder).second()


class _Steps:
    """Drives a module's step as Lightning's loop does, under a recorder."""

    def __init__(self, rank: SimulatedRank, model: LanguageModel, recorder: Recorder) -> None:
        self._rank = rank
        self._module = rank.make_module(model)
        self._module.trainer = SimpleNamespace(global_step=0)  # pyright: ignore[reportAttributeAccessIssue]
        self._optimizer = self._module.configure_optimizers()
        self._recorder = recorder
        rank.precision.step_hooks = SimpleNamespace(call=lambda *_: None)  # pyright: ignore[reportAttributeAccessIssue]
        self._strategy: Any = rank.parallelism.strategy
        if isinstance(self._strategy, str):
            self._strategy = None
        else:
            self._strategy.connect(self._module)
            self._strategy.precision_plugin = rank.precision

    def second(self) -> RecordedStep:
        parameters = _local(self._module.language_model.parameters())
        self._recorder.hold([*parameters, *self._module.buffers()], "weights")
        shape = self._rank.batch.sequences_per_micro_step, self._rank.batch.context_tokens + 1
        tokens = torch.zeros(shape, dtype=torch.int64)
        with self._recorder:
            self._step(tokens)
            self._recorder.memory.find_emptied()
            self._recorder.hold(_local(_state(self._optimizer)), "optimizer")
            return self._step(tokens)

    def _step(self, tokens: Tensor) -> RecordedStep:
        self._recorder.taken()
        number = min(MICRO_STEPS, self._rank.batch.accumulation_micro_steps)
        micro_steps: list[Recorded] = []
        for _ in range(number - 1):
            with self._strategy.block_backward_sync() if self._strategy else nullcontext():
                self._micro_step(tokens)
            micro_steps.append(self._recorder.taken())

        def last() -> None:
            self._micro_step(tokens)
            micro_steps.append(self._recorder.taken())

        with self._recorder.during("step"):
            if self._strategy:
                self._strategy.optimizer_step(self._optimizer, last, self._module)
            else:
                self._rank.precision.optimizer_step(self._optimizer, self._module, last)
            self._module.step.settle(0)
        return RecordedStep(micro_steps=micro_steps, end=self._recorder.taken())

    def _micro_step(self, tokens: Tensor) -> None:
        with self._recorder.during("forward"), self._rank.precision.forward_context():
            loss = self._module.step.forward(tokens)
        with self._recorder.during("backward"):
            self._module.step.backward(loss / self._rank.batch.accumulation_micro_steps)
            gradients = [one.grad for one in self._module.parameters() if one.grad is not None]
            self._recorder.hold(_local(gradients), "gradients")


def _local(tensors: Iterator[Tensor] | Sequence[Tensor]) -> list[Tensor]:
    return [one.to_local() if isinstance(one, DTensor) else one for one in tensors]


def _state(optimizer: Optimizer) -> list[Tensor]:
    return tensors_in(list(optimizer.state.values()))
