"""Train a tiny model from plain Python, without Hydra, and print one JSON line of losses: run by test_strategies.py.

Arguments: strategy (single, ddp, fsdp), micro-batch sequences, steps, precision (fp32, bf16_mixed, fp16_mixed, ...).
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as pl
import torch

from lmtrain.accounting.batches import Batch, BatchPlan, plan_batches
from lmtrain.data.synthetic import synthetic
from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.attention.auto import auto
from lmtrain.models.attention.base import KernelTarget
from lmtrain.models.llama import Llama
from lmtrain.optim.adamw import adamw
from lmtrain.optim.schedules import constant
from lmtrain.parallel.mesh import mesh
from lmtrain.parallel.replicate import ddp, single
from lmtrain.parallel.strategy import Parallelism
from lmtrain.precision import policy
from lmtrain.precision.policy import Precision
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.module import CausalLMModule
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.trainer import make_trainer
from lmtrain.training.transforms import ModelTransforms

CONTEXT_TOKENS = 32
TOKENS_PER_STEP = 256
CLIP = 0.3  # below the norm of the first steps, so that clipping acts


class StopAfter(pl.Callback):
    """End the fit after a number of optimizer steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.should_stop = trainer.global_step >= self.steps


def build_model() -> Llama:
    """Build the model that every strategy trains."""
    return Llama(
        width=32,
        num_layers=2,
        num_heads=2,
        feed_forward_width=64,
        vocab_size=512,
        max_context_tokens=CONTEXT_TOKENS,
        attention=auto.fitted(KernelTarget(device_type="cpu", dtype=torch.float32)),
    )


def train(strategy: str, micro_batch_sequences: int, steps: int, precision_name: str, folder: Path) -> list[float]:
    """Return the loss of every step, as seen by all ranks together."""
    outer = outer_launcher(os.environ)
    join(outer)
    num_ranks = outer.world_size if outer else 1
    batch = plan_batches(
        Batch(
            context_tokens=CONTEXT_TOKENS,
            tokens_per_step=TOKENS_PER_STEP,
            micro_batch_sequences=micro_batch_sequences,
        ),
        num_ranks=num_ranks,
    )
    precision: Precision = getattr(policy, precision_name)()
    strategies: dict[str, Callable[[], Parallelism]] = {
        "single": lambda: single(num_ranks=num_ranks),
        "ddp": lambda: ddp(num_ranks=num_ranks),
        "fsdp": lambda: mesh(option="fsdp", num_ranks=num_ranks, compute_dtype=precision.compute_dtype),
    }
    parallelism = strategies[strategy]()
    data = synthetic(root=str(folder), vocab_size=512, num_tokens=20_000)
    datamodule = TokenDataModule(folder=data, batch=batch, seed=7)
    module = fit(parallelism, batch, datamodule, steps=steps, folder=folder, precision=precision)
    return [record.loss for record in module.step_metrics.drain()]


def fit(
    parallelism: Parallelism,
    batch: BatchPlan,
    datamodule: TokenDataModule,
    *,
    steps: int,
    folder: Path,
    precision: Precision,
) -> CausalLMModule:
    """Train the parity model for some steps, clipped, with AdamW at a constant rate."""
    with torch.device("meta"):
        model = build_model()
    module = CausalLMModule(
        model,
        loss=CrossEntropy(),
        optimizer=partial(adamw, lr=1e-2),
        schedule=constant,
        batch=batch,
        total_steps=steps,
        seed=7,
        gradient_clip_norm=CLIP,
        transforms=ModelTransforms(
            precision=partial(precision.prepare, strategy_casts=parallelism.casts_parameters),
            parallelize=parallelism.parallelize,
        ),
    )
    trainer = make_trainer(
        strategy=parallelism.strategy,
        precision=PrecisionPlugin(precision, device_type="cpu", strategy_casts=parallelism.casts_parameters),
        devices=batch.num_ranks,
        accelerator="cpu",
        accumulation_micro_steps=batch.accumulation_micro_steps,
        folder=folder,
        callbacks=[StopAfter(steps)],
    )
    trainer.fit(module, datamodule=datamodule)
    return module


if __name__ == "__main__":
    torch.set_num_threads(1)
    with TemporaryDirectory() as temporary:
        losses = train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(temporary))
    if os.environ.get("RANK", "0") == "0":  # two ranks' lines can run into one another
        print(json.dumps(losses), flush=True)
