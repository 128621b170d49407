"""One of two ranks that train in each precision in turn, started by test_two_ranks.py; the rest goes to rank<r>.json.

Arguments: strategy (ddp, fsdp) and folder. In "broken" rank 1 makes the loss of the second step infinite, in fp16.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.distributed.tensor import DTensor

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.optim.adamw import adamw
from lmtrain.parallel.mesh import mesh
from lmtrain.parallel.replicate import ddp
from lmtrain.precision import policy
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.module import CausalLMModule, ModelTransforms
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.trainer import make_trainer
from tests.training.short_run import CONTEXT_TOKENS, meta_model

STEPS = 3


class Remembers(pl.Callback):
    """Keeps a checksum of the weights after every step."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in pl_module.parameters()]
        self.sums.append(sum(weight.detach().double().abs().sum().item() for weight in whole))
        trainer.should_stop = trainer.global_step >= STEPS


def train(
    strategy: str, precision: policy.Precision, folder: Path, *, rank: int, broken_step: int = 0
) -> dict[str, Any]:
    """Train a few steps with one micro-batch each, and tell how it went."""
    batch = plan_batches(Batch(context_tokens=CONTEXT_TOKENS, tokens_per_step=64, micro_batch_sequences=2), num_ranks=2)
    chosen = {
        "ddp": lambda: ddp(num_ranks=2),
        "fsdp": lambda: mesh(option="fsdp", num_ranks=2, compute_dtype=precision.compute_dtype),
    }[strategy]()
    plugin = PrecisionPlugin(precision, device_type="cpu", strategy_casts=chosen.casts_parameters)
    calls = 0

    def loss(project: Any, hidden: Any, targets: Any) -> Any:
        nonlocal calls
        calls += 1
        total = CrossEntropy()(project, hidden, targets)
        breaks = (calls, rank) == (broken_step, 1)
        return total._replace(objective=total.objective * torch.inf) if breaks else total

    module = CausalLMModule(
        meta_model(),
        loss=loss,
        optimizer=partial(adamw, lr=1e-2),
        schedule=lambda step, total_steps: 1.0,
        batch=batch,
        total_steps=STEPS,
        seed=7,
        gradient_clip_norm=1.0,
        scales_loss=precision.scales_loss,
        transforms=ModelTransforms(
            precision=partial(precision.prepare, strategy_casts=chosen.casts_parameters),
            parallelize=chosen.parallelize,
        ),
    )
    remembers = Remembers()
    trainer = make_trainer(
        strategy=chosen.strategy,
        precision=plugin,
        devices=2,
        accelerator="cpu",
        accumulation_micro_steps=batch.accumulation_micro_steps,
        folder=folder,
        callbacks=[remembers],
    )
    trainer.fit(module, datamodule=TokenDataModule(folder=folder / "data", batch=batch, seed=7))
    return {
        "sums": remembers.sums,
        "losses": [record.loss for record in module.step_metrics.drain()],
        "scale": plugin.state_dict().get("scale"),
        "dtypes": sorted({str(parameter.dtype) for parameter in module.parameters()}),
    }


def main(strategy: str, folder: Path) -> None:
    """Train in every precision that a CPU has, in one job."""
    outer = outer_launcher(os.environ)
    assert outer is not None
    join(outer)
    choices = (policy.fp32(), policy.fp16_mixed(), policy.bf16_mixed(), policy.bf16_true())
    found = {choice.facts.name: train(strategy, choice, folder, rank=outer.rank) for choice in choices}
    broken = {"broken": train(strategy, policy.fp16_mixed(), folder, rank=outer.rank, broken_step=2)}
    (folder / f"rank{outer.rank}.json").write_text(json.dumps({**found, **broken}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
