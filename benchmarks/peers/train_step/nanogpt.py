"""nanoGPT: its GPT from a checkout, and a loop in its style, since its train.py is a script that cannot be imported."""

import sys

import torch

from benchmarks.harness.train_step.task import LOG_EVERY_STEPS, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.hand_loop import autocast, train

GIVEN = (
    "its GPT-2 style model without biases as its train.py sets, tied or not as all are here; memmap crops, "
    "torch.compile(model), TF32, loss read every 10 steps; fused AdamW, which its own choice is on CUDA only"
)


def run(task: Task, turns: Turns) -> None:
    """Train."""
    sys.path.insert(0, str(task.checkout("nanoGPT")))
    from model import GPT, GPTConfig  # pyright: ignore[reportMissingImports]  # of the checkout

    torch.set_float32_matmul_precision("high")
    config = GPTConfig(
        block_size=task.context_tokens,
        vocab_size=task.vocab_size,
        n_layer=task.num_layers,
        n_head=task.num_heads,
        n_embd=task.width,
        dropout=0.0,
        bias=False,
    )
    model = GPT(config)
    if not task.is_tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.to(task.device)
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    called = torch.compile(model) if task.is_compiled else model
    train(task, turns, model, lambda batch: called(*batch)[1], casting=autocast(task), read_every_steps=LOG_EVERY_STEPS)
