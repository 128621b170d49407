"""Our own bare loop: the same model, data order and optimizer as the full Trainer's, and nothing around them."""

from typing import Any

import torch

from benchmarks.train_step_loops.ours import make_job, make_run
from benchmarks.train_step_loops.task import CLIP_NORM, LOG_EVERY_STEPS, Architecture, Task
from benchmarks.train_step_loops.turns import Turns
from lmtrain.training.module import CausalLMModule, materialize
from lmtrain.training.training_batches import RankRows, TrainingBatches

GIVEN = "our model, loader and fused AdamW in a hand-written loop; loss read every 10 steps"


def batches(run: Any) -> TrainingBatches:
    """Read what the Trainer would read."""
    datamodule = run.datamodule
    rows, order = datamodule._rows_in_order()  # noqa: SLF001
    return TrainingBatches(rows, RankRows(order, batch=run.context.plan.batch, rank=0, start_step=0))


def run(task: Task, turns: Turns, *, architecture: Architecture) -> None:
    """Train."""
    built = make_run(make_job(task, ["logger=none"], name="bare", architecture=architecture))
    module: CausalLMModule = built.module
    device = torch.device(task.device)
    model = materialize(module.language_model, device=device, seed=0)
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    model = module._transforms.compile(model)  # noqa: SLF001
    optimizer = module._optimizer(model)  # noqa: SLF001
    parameters = list(model.parameters())
    with_autocast = task.precision == "bf16_mixed"
    for step, batch in enumerate(batches(built)):
        tokens = batch.to(device, non_blocking=True).long()
        with torch.autocast(device.type, torch.bfloat16, enabled=with_autocast):
            total = model(tokens[:, :-1], tokens[:, 1:], module.loss)
        (total.objective / task.tokens_per_step).backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        if step % LOG_EVERY_STEPS == 0:
            total.nats.item()
        turns.step()
