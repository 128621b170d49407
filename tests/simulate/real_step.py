"""One tiny training that runs on gloo ranks by Lightning's Trainer, and is simulated from the same parts."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from lmtrain.accounting.batches import BatchPlan
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.llama import Llama
from lmtrain.optim.adamw import adamw
from lmtrain.optim.schedules import constant
from lmtrain.parallel.activation_checkpoint import every_block
from lmtrain.parallel.context import context
from lmtrain.parallel.fsdp import fsdp
from lmtrain.parallel.fsdp_tensor import fsdp_tensor
from lmtrain.parallel.hsdp import hsdp
from lmtrain.parallel.strategy import Parallelism
from lmtrain.parallel.tensor import tensor
from lmtrain.precision.policy import bf16_mixed
from lmtrain.simulate.rank_step import SimulatedRank
from lmtrain.training.intervals import is_step_end
from lmtrain.training.module import CausalLMModule
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.trainer import make_trainer
from lmtrain.training.transforms import ModelTransforms, unchanged
from tests.parallel.sent import Sent

CONTEXT_TOKENS = 64
STEPS = 5  # looked at
STRATEGIES: dict[str, Callable[..., Parallelism]] = {
    "fsdp": fsdp,
    "hsdp": partial(hsdp, shard_size=2),
    "tensor": partial(tensor, tensor_size=2),
    "fsdp_tensor": partial(fsdp_tensor, tensor_size=2),
    "context": partial(context, context_size=2),
}


def simulated(word: str, *, num_ranks: int, micro_steps: int = 2, recomputes: bool = False, num_layers: int = 3):
    """Return the parts of the training; the blocks differ from the embeddings in size, and divide by no rank."""
    parallelism = STRATEGIES[word](num_ranks=num_ranks, compute_dtype=torch.bfloat16)
    precision = bf16_mixed()
    batch = BatchPlan(
        context_tokens=CONTEXT_TOKENS,
        sequences_per_micro_step=2,
        accumulation_micro_steps=micro_steps,
        num_ranks=num_ranks,
        tensor_ranks=parallelism.spread.tensor_ranks,
        context_ranks=parallelism.spread.context_ranks,
    )
    return SimulatedRank(
        build=lambda: Llama(
            width=48, num_layers=num_layers, num_heads=4, num_kv_heads=2, feed_forward_width=136, vocab_size=1001,
            max_context_tokens=CONTEXT_TOKENS, attention=sdpa,
        ),
        make_module=partial(module_of, batch=batch),
        transforms=ModelTransforms(
            precision=partial(precision.prepare, strategy_casts=parallelism.casts_parameters),
            recompute=every_block if recomputes else unchanged,
            parallelize=parallelism.parallelize,
        ),
        parallelism=parallelism,
        precision=PrecisionPlugin(precision, device_type="cpu", strategy_casts=parallelism.casts_parameters),
        batch=batch,
    )  # fmt: skip


def module_of(model: Any, *, batch: BatchPlan, transforms: ModelTransforms | None = None) -> CausalLMModule:
    """Return the module of a model."""
    return CausalLMModule(
        model,
        loss=CrossEntropy(),
        optimizer=partial(adamw, lr=1e-3),
        schedule=constant,
        batch=batch,
        total_steps=2,
        seed=0,
        gradient_clip_norm=1.0,
        transforms=transforms,
    )


class AllSent(Sent):
    """Notes the messages inside of a DTensor's operations too, such as those of a norm."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


class LaterSteps(pl.Callback):
    """Notes the messages of the second step, and the most bytes at once in each of a few.

    gloo's threads let go of a message's copy some time after it was sent, on a busy machine after others were made:
    the least of the steps is theirs without that wait.
    """

    def __init__(self) -> None:
        self.sent = AllSent()
        self.found: dict[str, Any] = {}

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > 0 and batch_idx % trainer.accumulate_grad_batches == 0:
            self._held = sum(storages(pl_module, trainer.optimizers[0]).values())
            self._trace = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._trace.start()
            self.sent.take()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if is_step_end(trainer, batch_idx) and trainer.global_step > 1:
            self._trace.stop()
            peak = self._held + most_at_once(self._trace)
            before = self.found or {"sent": self.sent.take(), "peak": peak}
            self.found = before | {"peak": min(peak, before["peak"])}
            trainer.should_stop = trainer.global_step == 1 + STEPS


def storages(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, int]:
    """Return the bytes of weights and optimizer state by storage."""
    state = [one for values in optimizer.state.values() for one in values.values()]
    held = [getattr(one, "_local_tensor", one) for one in [*module.parameters(), *module.buffers(), *state]]
    return {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in held}


def most_at_once(trace: profile) -> int:
    """Add up the allocations and frees of a trace."""
    assert trace.profiler is not None
    assert trace.profiler.kineto_results is not None
    events = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def train(rank: int, folder: str, *cases: str) -> None:
    """Train each case, a strategy's word and whether blocks are recomputed, on these ranks; rank 0 notes both facts."""
    found = []
    for case in cases:
        word, _, recomputes = case.partition("+")
        parts = simulated(word, num_ranks=torch.distributed.get_world_size(), recomputes=bool(recomputes))
        with torch.device("meta"):
            model = parts.build()
        notes = LaterSteps()
        trainer = make_trainer(
            strategy=parts.parallelism.strategy,
            precision=parts.precision,
            devices=parts.batch.num_ranks,
            accelerator="cpu",
            accumulation_micro_steps=parts.batch.accumulation_micro_steps,
            folder=Path(folder),
            callbacks=[notes],
        )
        rows = [torch.zeros(CONTEXT_TOKENS + 1, dtype=torch.int64)] * 64
        with notes.sent:
            trainer.fit(
                module_of(model, batch=parts.batch, transforms=parts.transforms), DataLoader(rows, batch_size=2)
            )
        found.append(notes.found)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
