"""nanoGPT: its GPT and its configure_optimizers from a checkout, in a loop like its train.py, which is a script."""

import math
import sys
from typing import Any

import torch

from benchmarks.harness.learning_speed.task import LearningTask, Referee

LR, BETAS, WEIGHT_DECAY, WARM_UP_STEPS, LEAST, CLIP_NORM = 4e-3, (0.9, 0.99), 0.1, 40, 0.1, 1.0
GIVEN = (
    "its model (tied, learned positions, no biases or dropout) with 4 heads as its README's CPU command, its "
    "configure_optimizers (AdamW .9/.99, decay .1), fp32 as its train.py computes on a CPU, torch.compile, lr 4e-3, 40 "
    "steps up, cosine down to a tenth, clipping at 1, loss read every 10 steps"
)


def run(task: LearningTask, referee: Referee) -> None:
    """Train."""
    sys.path.insert(0, str(task.checkout("nanoGPT")))
    from model import GPT, GPTConfig  # pyright: ignore[reportMissingImports]  # of the checkout

    config = GPTConfig(
        block_size=task.context_tokens,
        vocab_size=task.vocab_size,
        n_layer=task.num_layers,
        n_head=4,
        n_embd=task.width,
        dropout=0.0,
        bias=False,
    )
    built = GPT(config)
    lr = LR * task.lr_factor
    optimizer = built.configure_optimizers(WEIGHT_DECAY, lr, BETAS, task.device)
    referee.say(num_parameters=sum(parameter.numel() for parameter in built.parameters()))
    model: Any = torch.compile(built)
    referee.predict_with(lambda inputs: model(inputs, inputs)[0])  # without targets it predicts the last token alone
    batches = task.batches()
    inputs, targets = next(batches)
    for step in range(task.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * share(step, task.max_steps)
        _, loss = model(inputs, targets)
        inputs, targets = next(batches)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss.item()
        referee.step()


def share(step: int, num_steps: int) -> float:
    """Return the part of the learning rate: linear up, then half a cosine."""
    if step < WARM_UP_STEPS:
        return (step + 1) / (WARM_UP_STEPS + 1)
    progress = (step - WARM_UP_STEPS) / max(1, num_steps - WARM_UP_STEPS)
    return LEAST + (1 - LEAST) * 0.5 * (1 + math.cos(math.pi * progress))
