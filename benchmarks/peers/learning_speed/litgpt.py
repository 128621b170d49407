"""litgpt: its own `pretrain.fit` on its GPT from a checkout, set up as its `pretrain.main` does."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import lightning
import torch
from torch import Tensor

from benchmarks.harness.learning_speed.task import LearningTask, Referee
from benchmarks.peers.train_step.litgpt import build

LR, BETAS, WEIGHT_DECAY, WARM_UP_STEPS, LEAST = 3e-3, (0.9, 0.95), 0.1, 40, 0.01
FEED_FORWARD_WIDTH = 320
GIVEN = (
    "its Llama-style model (SwiGLU of 320, untied, heads of 64), initialize_weights, Fabric and pretrain.fit itself, "
    "bf16-mixed as it chooses, torch.compile, AdamW .9/.95 with decay .1 and lr 3e-3, 40 steps up, cosine down to a "
    "hundredth, clipping at 1, log_interval 10, no logger"
)


class Rows:
    """The task's rows; each request after the first says that a step is over."""

    def __init__(self, task: LearningTask, referee: Referee) -> None:
        self._task, self._referee = task, referee

    def __iter__(self) -> Iterator[Tensor]:
        """Yield ids [B, T + 1]."""
        for number, ids in enumerate(self._task.rows()):
            if number:
                self._referee.step()
            yield ids


def run(task: LearningTask, referee: Referee) -> None:
    """Train."""
    sys.path.insert(0, str(task.checkout("litgpt")))
    from litgpt.args import EvalArgs, TrainArgs  # pyright: ignore[reportMissingImports]  # of the checkout
    from litgpt.pretrain import fit  # pyright: ignore[reportMissingImports]
    from litgpt.utils import (  # pyright: ignore[reportMissingImports]
        get_default_supported_precision,
        instantiate_torch_optimizer,
    )

    lr = LR * task.lr_factor
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=get_default_supported_precision(training=True))
    model = build(replace(task, gated_width=FEED_FORWARD_WIDTH), fabric)
    referee.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    model = fabric.setup(torch.compile(model))
    settings = {"lr": lr, "betas": BETAS, "weight_decay": WEIGHT_DECAY}
    chosen = {"class_path": "torch.optim.AdamW", "init_args": settings}
    optimizer = fabric.setup_optimizers(instantiate_torch_optimizer(chosen, model.parameters(), fused=False))
    referee.predict_with(lambda inputs: model(inputs))
    train = TrainArgs(
        save_interval=None,
        log_interval=10,
        global_batch_size=task.num_sequences,
        micro_batch_size=task.num_sequences,
        max_tokens=task.max_steps * task.tokens_per_step,
        max_norm=1.0,
        min_lr=LEAST * lr,
        lr_warmup_steps=WARM_UP_STEPS,
    )
    rows = Rows(task, referee)
    fit(
        fabric=fabric,
        devices=1,
        state={"model": model, "optimizer": optimizer, "train_dataloader": rows, "iter_num": 0, "step_count": 0},
        train_dataloader=rows,
        val_dataloader=[next(task.rows())],  # its own check before the first step; its figures are not read
        out_dir=Path(task.scratch),
        tokenizer_dir=None,
        train=train,
        eval=EvalArgs(interval=10**9, max_iters=1, initial_validation=False, final_validation=False),
    )
