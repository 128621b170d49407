"""The FlashAttention packages (arXiv 2205.14135, 2307.08691, 2407.08608) for NVIDIA GPUs: versions 2, 3 and 4.

2 and 3 are called through their packages, 4 through torch's activation hook, the only one known to the compiler.
Documents lie end to end and are told apart by their borders, so nothing hidden is computed.
B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from lmtrain.accounting.options.parts import AttentionFacts
from lmtrain.errors import ConfigurationError
from lmtrain.models.attention.base import Attention, KernelTarget
from lmtrain.models.attention.flash_packages import FlashPackage, Lines, load_package
from lmtrain.models.attention.masks import Prepared, document_borders, is_cut

DTYPES = (torch.bfloat16, torch.float16)
MAX_HEAD_WIDTH = 256


@final
@dataclass(frozen=True, kw_only=True)
class Flash(Attention):
    """Take the newest installed version for the GPU, or the requested one.

    `max_documents_per_row` is room for borders, on average over a batch's rows: shapes must not depend on the data.
    """

    version: Literal[2, 3, 4] | None = None
    max_documents_per_row: int = 128

    def __post_init__(self) -> None:
        if self.max_documents_per_row < 1:
            msg = f"attention.max_documents_per_row={self.max_documents_per_row} is below 1; nearest valid: 1."
            raise ConfigurationError(msg)

    @override
    def __call__(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B Hkv T K"],
        v: Float[Tensor, "B Hkv T K"],
        /,
        *,
        window_tokens: int | None = None,
        documents: Int[Tensor, "B T"] | Prepared | None = None,
    ) -> Float[Tensor, "B H T K"]:
        kernel = self.fitted(KernelTarget(device_type=q.device.type, dtype=q.dtype, head_width=q.shape[-1]))
        return kernel(q, k, v, window_tokens=window_tokens, documents=documents)

    @override
    def fitted(self, place: KernelTarget) -> "LoadedFlash":
        if place.device_type != "cuda":
            msg = (
                f"attention=flash needs an NVIDIA GPU, and this is {place.device_type}; nearest valid: "
                f"{flash_facts(on_gpu=False).without_gpu}."
            )
            raise ConfigurationError(msg)
        if place.dtype not in DTYPES:
            name = str(place.dtype).removeprefix("torch.")
            msg = f"attention=flash computes in bf16 or fp16, not {name}: take such a precision, or attention=sdpa."
            raise ConfigurationError(msg)
        if place.head_width > MAX_HEAD_WIDTH or place.head_width % 8:
            msg = (
                f"attention=flash takes heads up to {MAX_HEAD_WIDTH} wide in multiples of 8, and these are"
                f" {place.head_width}; nearest valid: attention=sdpa."
            )
            raise ConfigurationError(msg)
        return LoadedFlash(load_package(self.version), max_documents_per_row=self.max_documents_per_row)

    @override
    def describe(self, place: KernelTarget) -> str:
        return self.fitted(place).describe(place)


@final
@dataclass(frozen=True)
class LoadedFlash(Attention):
    """A package present, for a device able to run it."""

    package: FlashPackage
    max_documents_per_row: int = 128

    @override
    def __call__(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B Hkv T K"],
        v: Float[Tensor, "B Hkv T K"],
        /,
        *,
        window_tokens: int | None = None,
        documents: Int[Tensor, "B T"] | Prepared | None = None,
    ) -> Float[Tensor, "B H T K"]:
        num_tokens = q.shape[-2]
        if isinstance(documents, Tensor):
            documents = self.prepare(documents, num_tokens=num_tokens, windows=(window_tokens,), device=q.device)
        window = window_tokens if is_cut(num_tokens, window_tokens) else None
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, T, H, K]
        if documents is None:
            return self.package.dense(q, k, v, window).transpose(1, 2)
        lines = Lines(*(x.flatten(0, 1) for x in (q, k, v)), borders=documents.parts[window_tokens])
        mixed = self.package.ragged(lines, num_tokens, window)  # [B * T, H, K]
        return mixed.unflatten(0, q.shape[:2]).transpose(1, 2)

    @override
    def prepare(
        self,
        documents: Int[Tensor, "B T"] | None,
        *,
        num_tokens: int,
        windows: Collection[int | None],
        device: torch.device,
    ) -> Prepared | None:
        """Find the borders of documents; a window alone needs nothing."""
        del device
        if documents is None:
            return None
        borders = document_borders(documents, max_documents=min(self.max_documents_per_row, num_tokens))
        return Prepared(dict.fromkeys(windows, borders))

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"flash: {self.package.name} on {place.device_type}"


def flash_facts(*, on_gpu: bool) -> AttentionFacts:
    """Keep the same as torch's own kernel on a GPU."""
    measured_as = "lmtrain.models.attention.sdpa.SDPA" if on_gpu else None
    return AttentionFacts(measured_as=measured_as, masks_beyond=None, without_gpu="attention=auto")
