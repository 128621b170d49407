"""The models of the measurements: an experiment each, what is set beside it on a GPU, and a toy of it for a CPU.

The toys have the same layers, only narrow: they show that a measurement runs, and no figure of theirs is kept.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch

from lmtrain.models.base import LanguageModel
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.schema.node import instantiate

TOY: Final = (
    "batch.context_tokens=128",
    "batch.tokens_per_step=512",
    "batch.micro_batch_sequences=2",
    "tokenizer=byte_level",
    "tokenizer.vocab_size=512",
    "precision=fp32",
    "compile=none",
    "scaling=none",
)
BEST: Final = ("attention=auto", "loss=chunked", "precision=bf16_residual", "compile=blocks")


@dataclass(frozen=True)
class Case:
    """Words that one would type after `python train.py`, and those that make a toy of it."""

    name: str
    words: tuple[str, ...]
    toy: tuple[str, ...]

    def overrides(self, *, is_toy: bool) -> list[str]:
        """Return what describes the run, each key once with its last value."""
        return last_of_each([*self.words, *(*TOY, *self.toy) * is_toy])


CASES: Final = (
    Case(
        "llama_3_2_1b",
        ("experiment=llama_3_2_1b_adamw", *BEST),
        (
            "model.width=64",
            "model.num_layers=2",
            "model.num_heads=4",
            "model.num_kv_heads=2",
            "model.feed_forward_width=128",
            "model.vocab_size=512",
        ),
    ),
    Case(
        "gpt2_124m",
        (
            "experiment=gpt2_124m_adamw",
            *BEST,
            "model.vocab_size=50304",  # a multiple of 128, which products of the head want
            "batch.micro_batch_sequences=64",
        ),
        ("model.width=64", "model.num_layers=2", "model.num_heads=2", "model.vocab_size=512"),
    ),
    Case(
        "nano_d24",
        (
            "experiment=nano_d12",
            "model.depth=24",
            "tokenizer.vocab_size=32768",
            *BEST,
            "batch.micro_batch_sequences=16",
        ),
        ("model.depth=2", "optimizer.compile_update=false"),
    ),
)


def last_of_each(words: list[str]) -> list[str]:
    """Return overrides with each key once, at its last value."""
    return list({word.partition("=")[0]: word for word in words}.values())


def composed(case: Case, *, is_toy: bool) -> dict[str, Any]:
    """Return the config of a case."""
    return compose_config(case.overrides(is_toy=is_toy))


def meta_model(config: dict[str, Any]) -> LanguageModel:
    """Build the model of a config without memory."""
    with torch.device("meta"):
        return instantiate(config["model"], key="model")
