"""What every loop is given: one model shape, the same tokens, as many of them a step, one optimizer, one precision."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lmtrain.accounting.model.flops import FlopsPerToken, flops_per_token
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape

Architecture = Literal["llama", "gpt2", "nano"]
LR, BETAS, WEIGHT_DECAY, CLIP_NORM, LOG_EVERY_STEPS = 3e-4, (0.9, 0.95), 0.1, 1.0, 10


class Unavailable(RuntimeError):
    """This peer cannot run this task here; the message says why, and is printed in the table."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A decoder without biases, in whatever style a peer has; untied unless `is_tied`, but nanochat's always.

    A gated feed-forward of 8/3 D (Llama) multiplies as much as an ungated one of 4 D (GPT-2, nanochat): 12 D^2 matrix
    parameters a layer where `num_kv_heads` and `gated_width` are None.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None  # None: as many as heads
    head_width: int = 64
    gated_width: int | None = None  # of a gated feed-forward; None: 8/3 of D
    is_tied: bool = False  # the head is the token embedding
    vocab_size: int
    context_tokens: int
    num_sequences: int
    device: Literal["cpu", "cuda"]
    precision: Literal["fp32", "bf16_mixed"]
    is_compiled: bool
    threads: int
    warm_up_steps: int
    turn_steps: int
    max_steps: int
    data_root: str  # of lmtrain's prepared data
    tokens_file: str  # its training tokens, flat and little-endian
    tokens_dtype: str = "<u2"
    peers: str  # folder of checkouts
    scratch: str  # folder that goes with the measurement

    @property
    def width(self) -> int:
        """Return D."""
        return self.num_heads * self.head_width

    @property
    def feed_forward_width(self) -> int:
        """Return the width of a gated feed-forward."""
        return self.gated_width or 8 * self.width // 3

    @property
    def kv_heads(self) -> int:
        """Return how many heads keys and values have."""
        return self.num_kv_heads or self.num_heads

    @property
    def tokens_per_step(self) -> int:
        """Return how many tokens one optimizer step trains on."""
        return self.num_sequences * self.context_tokens

    @property
    def flops(self) -> FlopsPerToken:
        """Count the same FLOPs for every loop, whatever else its model does."""
        attends = 2 * self.width * (self.num_heads + self.kv_heads) * self.head_width
        layer = attends + 3 * self.width * self.feed_forward_width
        head = self.vocab_size * self.width
        matrices = self.num_layers * layer + head
        total = matrices + head * (not self.is_tied)
        attention = (AttentionShape(num_heads=self.num_heads, head_width=self.head_width),) * self.num_layers
        shape = ModelShape(
            num_parameters=total,
            num_embedding_parameters=head,
            num_matmul_parameters=matrices,
            num_active_parameters=total,
            attention=attention,
        )
        return flops_per_token(shape, self.context_tokens)

    @property
    def dtype(self) -> torch.dtype:
        """Return the format of matrix products."""
        return torch.bfloat16 if self.precision == "bf16_mixed" else torch.float32

    def tokens(self) -> NDArray[Any]:
        """Map the training tokens."""
        return np.memmap(self.tokens_file, dtype=self.tokens_dtype, mode="r")

    def checkout(self, name: str) -> Path:
        """Return a peer's folder.

        Raises:
            Unavailable: It is not in the folder of checkouts.
        """
        folder = Path(self.peers) / name
        if not self.peers or not folder.is_dir():
            raise Unavailable(f"no checkout {name} in --peers {self.peers or '(not given)'}")
        return folder

    def save(self, path: Path) -> None:
        """Write the task for a process of its own."""
        path.write_text(json.dumps(asdict(self)))


def load_task(path: Path) -> Task:
    """Read a saved task."""
    return Task(**json.loads(path.read_text()))
