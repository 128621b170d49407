"""Hugging Face: its LlamaForCausalLM in its Trainer, from the installed transformers."""

import importlib.util
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.harness.train_step.task import BETAS, CLIP_NORM, LOG_EVERY_STEPS, LR, WEIGHT_DECAY, Task, Unavailable
from benchmarks.harness.train_step.turns import Turns

GIVEN = (
    "LlamaForCausalLM (sdpa) in Trainer; adamw_torch_fused, bf16, tf32 on a GPU, torch_compile, two workers that load "
    "on a GPU, logging_steps 10, logging_nan_inf_filter off, no reports, bar, saving or evaluation"
)


def require_liger(task: Task) -> None:
    """Raise Unavailable where Liger's Triton kernels cannot run."""
    if task.device == "cpu":
        raise Unavailable("Liger's kernels are Triton's and run on a GPU")
    for name, package in {"liger_kernel": "liger-kernel", "triton": "triton"}.items():
        if importlib.util.find_spec(name) is None:
            raise Unavailable(f"{package} is not installed")


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Rows of the token file; the model shifts them itself."""

    def __init__(self, task: Task) -> None:
        self._tokens, self._length = task.tokens(), task.context_tokens

    def __len__(self) -> int:
        return len(self._tokens) // self._length

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """Return a row as inputs and labels."""
        ids = self._tokens[row * self._length : (row + 1) * self._length].astype(np.int64)
        tokens = torch.from_numpy(ids)
        return {"input_ids": tokens, "labels": tokens}


def run(task: Task, turns: Turns, *, with_liger: bool = False) -> None:
    """Train.

    Raises:
        Unavailable: transformers is not installed, or Liger's kernels are wanted where they cannot run.
    """
    try:
        import transformers
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
    except ImportError as problem:
        raise Unavailable(f"transformers is not installed: {problem}") from problem
    if with_liger:
        require_liger(task)

    class EndOfStep(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.step()

    transformers.logging.set_verbosity_error()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=task.vocab_size,
            hidden_size=task.width,
            intermediate_size=task.feed_forward_width,
            num_hidden_layers=task.num_layers,
            num_attention_heads=task.num_heads,
            num_key_value_heads=task.kv_heads,
            head_dim=task.head_width,
            max_position_embeddings=task.context_tokens,
            tie_word_embeddings=task.is_tied,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]  # taken by the base class
            use_cache=False,
        )
    )
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    arguments = TrainingArguments(
        output_dir=task.scratch,
        max_steps=task.max_steps,
        per_device_train_batch_size=task.num_sequences,
        learning_rate=LR,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP_NORM,
        optim="adamw_torch_fused",
        bf16=task.precision == "bf16_mixed",
        tf32=True if task.device == "cuda" else None,
        torch_compile=task.is_compiled,
        use_liger_kernel=with_liger,
        logging_steps=LOG_EVERY_STEPS,
        logging_nan_inf_filter=False,
        dataloader_num_workers=2 if task.device == "cuda" else 0,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=task.device == "cpu",
    )
    Trainer(model=model, args=arguments, train_dataset=Windows(task), callbacks=[EndOfStep()]).train()
