"""A hand-written loop for models whose own training script cannot be imported: what every such script does."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness.train_step.task import BETAS, CLIP_NORM, LR, WEIGHT_DECAY, Task
from benchmarks.harness.train_step.turns import Turns

Batch = tuple[Tensor, Tensor]


def crops(task: Task, *, to_device: bool = True) -> Iterator[Batch]:
    """Yield inputs and targets, int64 [B, T] each, at random places of the token file."""
    tokens, length = task.tokens(), task.context_tokens
    while True:
        starts = np.random.default_rng().integers(len(tokens) - length - 1, size=task.num_sequences)
        rows = torch.from_numpy(np.stack([tokens[at : at + length + 1] for at in starts]).astype(np.int64))
        inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if task.device == "cuda" and to_device:
            yield inputs.pin_memory().to("cuda", non_blocking=True), targets.pin_memory().to("cuda", non_blocking=True)
        else:
            yield inputs, targets


def autocast(task: Task) -> AbstractContextManager[Any]:
    """Return the context of mixed precision, or none."""
    return torch.autocast(task.device, torch.bfloat16) if task.precision == "bf16_mixed" else nullcontext()


def fused_adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Build the task's optimizer: decay on matrices alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": WEIGHT_DECAY}]
    groups += [{"params": vectors, "weight_decay": 0.0}] if vectors else []
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, fused=True)


def train(
    task: Task,
    turns: Turns,
    model: torch.nn.Module,
    loss_of: Callable[[Batch], Tensor],
    *,
    casting: AbstractContextManager[Any],
    read_every_steps: int,
) -> None:
    """Take steps: forward, the next batch, backward, clip, optimizer, zero, and read the loss now and then."""
    optimizer, batches = fused_adamw(model), crops(task)
    parameters = list(model.parameters())
    batch = next(batches)
    for step in range(task.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = LR
        with casting:
            loss = loss_of(batch)
        batch = next(batches)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % read_every_steps == 0:
            loss.item()
        turns.step()
