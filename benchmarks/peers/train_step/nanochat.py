"""nanochat: its GPT from a checkout, in a loop like its base_train.py, with the task's AdamW in place of its Muon.

It reads the loss at every step and switches garbage collection off, as that script does; windows are all long.
"""

import contextlib
import gc
import os
import sys
from typing import Any

import torch

from benchmarks.harness.train_step.task import Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.hand_loop import train

GIVEN = (
    "its model with value embeddings and smear, window pattern L; torch.compile(dynamic=False), garbage collector off, "
    "loss read at every step; fused AdamW and clipping, which are not its own"
)


def run(task: Task, turns: Turns) -> None:
    """Train."""
    torch.set_float32_matmul_precision("high")
    model = build(task, is_bf16=task.precision == "bf16_mixed")
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    called = torch.compile(model, dynamic=False) if task.is_compiled else model
    gc.collect()
    gc.freeze()
    gc.disable()
    train(task, turns, model, lambda batch: called(*batch), casting=contextlib.nullcontext(), read_every_steps=1)


def build(task: Task, *, is_bf16: bool, window_pattern: str = "L") -> Any:
    """Build its model on the device with its own initial weights; it computes in the format that its environment says.

    Raises:
        Unavailable: There is no checkout of it.
    """
    sys.path.insert(0, str(task.checkout("nanochat")))
    os.environ["NANOCHAT_DTYPE"] = "bfloat16" if is_bf16 else "float32"
    from nanochat.gpt import GPT, GPTConfig  # pyright: ignore[reportMissingImports]  # of the checkout

    config = GPTConfig(
        sequence_len=task.context_tokens,
        vocab_size=task.vocab_size,
        n_layer=task.num_layers,
        n_head=task.num_heads,
        n_kv_head=task.num_heads,
        n_embd=task.width,
        window_pattern=window_pattern,
    )
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device=task.device)
    model.init_weights()
    return model
