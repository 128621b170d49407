"""nanochat: its GPT, init_weights and setup_optimizer from a checkout, in a loop like its base_train.py, a script."""

import gc
import math
from typing import Any

import torch

from benchmarks.harness.learning_speed.task import LearningTask, Referee
from benchmarks.peers.train_step.nanochat import build

EMBEDDING_LR, UNEMBEDDING_LR, SCALAR_LR, REFERENCE_BATCH = 0.3, 0.008, 0.5, 2**19  # of its base_train.py
ADAM_FACTOR, MATRIX_LR, WEIGHT_DECAY = 4.0, 0.015, 0.3  # the best of three tries on this task
WARM_UP_STEPS, WARM_DOWN, LEAST = 40, 0.65, 0.05
GIVEN = (
    "its model (value embeddings, smear, windows all long, heads of 64), init_weights, setup_optimizer (Muon and "
    "AdamW), bf16 by NANOCHAT_DTYPE, torch.compile, its schedules of rate, momentum and decay, its rates by its square "
    "root of the batch, AdamW's times 4, matrices .015, decay .3; garbage collector off, loss read at every step"
)


def run(task: LearningTask, referee: Referee) -> None:
    """Train."""
    built = build(task, is_bf16=True)
    referee.say(num_parameters=sum(parameter.numel() for parameter in built.parameters()))
    optimizer = build_optimizer(task, built)
    model: Any = torch.compile(built, dynamic=False)
    referee.predict_with(lambda inputs: model(inputs))
    batches = task.batches()
    inputs, targets = next(batches)
    for step in range(task.max_steps):
        loss = model(inputs, targets)
        loss.backward()
        inputs, targets = next(batches)
        schedule(optimizer, step, task.max_steps)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        loss.item()
        if step == 0:
            gc.collect()
            gc.freeze()
            gc.disable()
        referee.step()


def build_optimizer(task: LearningTask, model: Any) -> torch.optim.Optimizer:
    """Let the model build its optimizer, with rates for this batch."""
    adam = task.lr_factor * ADAM_FACTOR * math.sqrt(task.tokens_per_step / REFERENCE_BATCH)
    return model.setup_optimizer(
        unembedding_lr=UNEMBEDDING_LR * adam,
        embedding_lr=EMBEDDING_LR * adam,
        scalar_lr=SCALAR_LR * adam,
        matrix_lr=MATRIX_LR * task.lr_factor,
        weight_decay=WEIGHT_DECAY,
    )


def schedule(optimizer: torch.optim.Optimizer, step: int, num_steps: int) -> None:
    """Set rate, momentum and decay of a step."""
    num_down = round(WARM_DOWN * num_steps)
    left = min(1.0, (num_steps - step) / num_down)  # 1 until the warm-down begins
    lr = (step + 1) / WARM_UP_STEPS if step < WARM_UP_STEPS else left + (1 - left) * LEAST
    rising = min(1.0, step / 400)
    momentum = 0.85 + 0.12 * rising if rising < 1 or left == 1.0 else 0.97 * left + 0.90 * (1 - left)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * lr
        if group["kind"] == "muon":
            group["momentum"] = momentum
            group["weight_decay"] = WEIGHT_DECAY * 0.5 * (1 + math.cos(math.pi * step / num_steps))
