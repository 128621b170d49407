"""litgpt: its own `pretrain.fit` on its GPT from a checkout, set up as its `pretrain.main` does."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness.train_step.task import CLIP_NORM, LOG_EVERY_STEPS, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.hand_loop import fused_adamw

GIVEN = (
    "its Llama-style model and pretrain.fit on Fabric; log_interval 10, a DataLoader over the memmap, "
    "torch.compile(model); fused AdamW, which its own choice is on CUDA only; no logger"
)


class Windows(Dataset[torch.Tensor]):
    """Rows [T + 1] of the token file."""

    def __init__(self, task: Task) -> None:
        self._tokens, self._length = task.tokens(), task.context_tokens

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, row: int) -> torch.Tensor:
        """Return a row."""
        start = row * self._length
        return torch.from_numpy(self._tokens[start : start + self._length + 1].astype(np.int64))


class Told:
    """A loader whose every request for a batch after the first says that a step is over."""

    def __init__(self, loader: Any, turns: Turns) -> None:
        self._loader, self._turns, self._is_first = loader, turns, True

    def __iter__(self) -> Iterator[Any]:
        """Yield batches."""
        for batch in self._loader:
            if not self._is_first:
                self._turns.step()
            self._is_first = False
            yield batch


def run(task: Task, turns: Turns) -> None:
    """Train."""
    sys.path.insert(0, str(task.checkout("litgpt")))
    from litgpt.args import EvalArgs, TrainArgs  # pyright: ignore[reportMissingImports]  # of the checkout
    from litgpt.pretrain import fit  # pyright: ignore[reportMissingImports]

    torch.set_float32_matmul_precision("high")
    fabric = lightning.Fabric(
        accelerator="cpu" if task.device == "cpu" else "cuda",
        devices=1,
        precision="bf16-mixed" if task.precision == "bf16_mixed" else "32-true",
    )
    model = build(task, fabric)
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    train = TrainArgs(
        save_interval=None,
        log_interval=LOG_EVERY_STEPS,
        global_batch_size=task.num_sequences,
        micro_batch_size=task.num_sequences,
        max_tokens=task.max_steps * task.tokens_per_step,
        max_norm=CLIP_NORM,
        min_lr=3e-4,
        lr_warmup_steps=1,
    )
    model = fabric.setup(torch.compile(model) if task.is_compiled else model)
    optimizer = fabric.setup_optimizers(fused_adamw(model))
    loader = fabric.setup_dataloaders(DataLoader(Windows(task), batch_size=task.num_sequences, drop_last=True))
    state = {"model": model, "optimizer": optimizer, "train_dataloader": loader, "iter_num": 0, "step_count": 0}
    never = EvalArgs(interval=10**9, max_iters=1, initial_validation=False)
    fit(
        fabric=fabric,
        devices=1,
        state=state,
        train_dataloader=Told(loader, turns),
        val_dataloader=loader,
        out_dir=Path(task.scratch),
        tokenizer_dir=None,
        train=train,
        eval=never,
    )


def build(task: Task, fabric: Any) -> Any:
    """Build its model on the device with its own initial weights."""
    from litgpt.config import Config  # pyright: ignore[reportMissingImports]
    from litgpt.model import GPT  # pyright: ignore[reportMissingImports]
    from litgpt.pretrain import initialize_weights  # pyright: ignore[reportMissingImports]

    config = Config(
        block_size=task.context_tokens,
        vocab_size=task.vocab_size,
        padded_vocab_size=task.vocab_size,
        n_layer=task.num_layers,
        n_head=task.num_heads,
        n_query_groups=task.kv_heads,
        n_embd=task.width,
        head_size=task.head_width,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=task.feed_forward_width,
    )
    with fabric.init_module(empty_init=True):
        model = GPT(config)
    initialize_weights(fabric, model, n_layer=config.n_layer, n_embd=config.n_embd)
    if task.is_tied:  # as its pretrain.main does
        model.transformer.wte.weight = model.lm_head.weight
    model.max_seq_length = task.context_tokens
    return model
