"""nanochat as its base_train.py trains: its model, MuonAdamW, schedules and loop from a checkout, at a case's depth.

Depth, windows and precision come from the words that lie beside the task, so that both sides train the same.
"""

import gc
import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.harness.hopper.loops import WORDS_FILE
from benchmarks.harness.train_step.task import Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.hand_loop import crops
from benchmarks.peers.train_step.nanochat import build
from lmtrain.data.synthetic import synthetic

ASPECT_RATIO, HEAD_WIDTH = 64, 128  # of its base_train.py, as all that follows
WARM_UP_STEPS, MOMENTUM_STEPS, MOMENTUM = 40, 400, (0.85, 0.97)
RATES: Final = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "scalar_lr": 0.5, "matrix_lr": 0.02, "weight_decay": 0.28}
GIVEN = (
    "its base_train.py's step: --depth and --window-pattern as ours, --device-batch-size of the micro-batch, its "
    "MuonAdamW with warm-up of rate and momentum, torch.compile(dynamic=False), garbage collector off after the first "
    "step, loss read and device awaited at every step; crops in place of its tokenizing loader"
)


def run(task: Task, turns: Turns) -> None:
    """Train.

    Raises:
        Unavailable: There is no checkout of it.
    """
    words = dict(word.split("=", 1) for word in json.loads(Path(task.scratch, WORDS_FILE).read_text()))
    depth, is_fp8 = int(words["model.depth"]), words["precision"] == "fp8"
    num_heads = -(-depth * ASPECT_RATIO // HEAD_WIDTH)
    sized = replace(task, num_layers=depth, num_heads=num_heads, head_width=HEAD_WIDTH)
    torch.compiler.set_stance("default" if task.is_compiled else "force_eager")
    torch.set_float32_matmul_precision("high")
    model = build(sized, is_bf16=task.precision == "bf16_mixed", window_pattern=words["model.window_pattern"])
    turns.say(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()), given=GIVEN + extras(is_fp8=is_fp8)
    )
    if is_fp8:
        to_fp8(model)
    optimizer = model.setup_optimizer(**RATES)
    train(with_tokens(sized), turns, torch.compile(model, dynamic=False), optimizer)


def extras(*, is_fp8: bool) -> str:
    """Return which attention its own choice came to, and whether it computes in fp8."""
    from nanochat.flash_attention import USE_FA3  # pyright: ignore[reportMissingImports]  # of the checkout

    return f"; {'FlashAttention 3' if USE_FA3 else 'sdpa, no FlashAttention 3 here'}{'; --fp8' if is_fp8 else ''}"


def to_fp8(model: Any) -> None:
    """Replace its larger linear layers by those that multiply in fp8, as its --fp8 does."""
    from nanochat.fp8 import (  # pyright: ignore[reportMissingImports]  # of the checkout
        Float8LinearConfig,
        convert_to_float8_training,
    )

    def is_wide(module: Any, name: str) -> bool:
        del name
        if not isinstance(module, torch.nn.Linear):
            return False
        sides = (module.in_features, module.out_features)
        return min(sides) >= 128 and not any(side % 16 for side in sides)

    config = Float8LinearConfig.from_recipe_name("tensorwise")
    convert_to_float8_training(model, config=config, module_filter_fn=is_wide)


def with_tokens(task: Task) -> Task:
    """Return the task with a file of made-up tokens, the one that our own run reads."""
    (shard,) = synthetic(root=task.data_root, vocab_size=task.vocab_size).glob("**/*train*.ds")
    return replace(task, tokens_file=str(shard))


def train(task: Task, turns: Turns, model: Any, optimizer: Any) -> None:
    """Take steps as its script does, in the first part of its schedules."""
    batches = crops(task)
    batch = next(batches)
    for step in count():
        loss = model(*batch)
        loss.backward()
        batch = next(batches)
        part = min(step / MOMENTUM_STEPS, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min((step + 1) / WARM_UP_STEPS, 1.0)
            if group["kind"] == "muon":
                group["momentum"] = (1 - part) * MOMENTUM[0] + part * MOMENTUM[1]
        optimizer.step()
        model.zero_grad(set_to_none=True)
        loss.item()
        if task.device == "cuda":
            torch.cuda.synchronize()
        if step == 0:
            gc.collect()
            gc.freeze()
            gc.disable()
        turns.step()
