"""torch's fused attention, with its kernel picked by torch: cuDNN or flash on a GPU, its own flash on a CPU.

B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from typing_extensions import override

from lmtrain.models.attention.base import Attention, KernelTarget, Seen, mask_of

KERNEL_NAMES = {
    "CUDNN_ATTENTION": "cuDNN",
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "memory-efficient",
    "MATH": "plain products",
}


@final
class SDPA(Attention):
    """Call torch's kernel; a window shorter than the context, or documents, cost an explicit mask of all pairs."""

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        mask = mask_of(documents, num_tokens=q.shape[-2], window_tokens=window_tokens, device=q.device)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
        )

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"sdpa: torch picks {kernel_picked(place)} on {place.device_type}"


def kernel_picked(place: KernelTarget) -> str:
    """Ask torch which of its kernels runs causal attention at a place."""
    q = torch.empty(1, 2, 128, 64, dtype=place.dtype, device=place.device_type, requires_grad=place.training)
    choose: Any = getattr(torch, "_fused_sdp_choice")  # noqa: B009  # as scaled_dot_product_attention itself asks
    backend = SDPBackend(choose(q, q, q, attn_mask=None, dropout_p=0.0, is_causal=True))
    return KERNEL_NAMES.get(backend.name, backend.name.lower())


sdpa = SDPA()
