"""Cross-entropy by Liger's fused kernels (arXiv 2410.10989), an optional package for GPUs.

B batch, T tokens, D width, V vocabulary.
"""

import importlib
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from lmtrain.accounting.options.parts import LossFacts
from lmtrain.errors import ConfigurationError
from lmtrain.losses.base import TokenLoss
from lmtrain.missing_package import require_package
from lmtrain.models.head import LossTotal, OutputHead

MODULE = "liger_kernel"


@final
@dataclass(frozen=True, kw_only=True)
class LigerCrossEntropy(TokenLoss):
    """Let Liger score chunks of Liger's size: a chunk's logits are about as many as all hidden states."""

    @override
    def require_fit(self, *, device_type: str, soft_cap: float | None) -> None:
        if device_type != "cuda":
            without = LIGER_CROSS_ENTROPY_FACTS.without_gpu
            msg = f"loss=liger needs an NVIDIA GPU, and this is {device_type}. Did you mean {without}?"
            raise ConfigurationError(msg)
        require_package("loss=liger", MODULE, extra="liger", instead="loss=chunked")

    @override
    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        functional: Any = importlib.import_module(f"{MODULE}.transformers.functional")
        flat = targets.flatten()
        result = functional.liger_fused_linear_cross_entropy(
            hidden.flatten(0, -2),
            project.weight,
            flat,
            ignore_index=self.ignore_index,
            lse_square_scale=self.z_loss_weight,
            reduction="sum",
            softcap=project.soft_cap,
            return_z_loss=self.z_loss_weight > 0,
            accum_dtype=torch.float32,
        )
        objective, nats = result, result
        if self.z_loss_weight:
            objective, nats = result.loss, result.loss - result.z_loss
        return LossTotal(objective, nats=nats.detach().double(), num_tokens=(flat != self.ignore_index).sum())


LIGER_CROSS_ENTROPY_FACTS: Final = LossFacts(takes_shards=False, without_gpu="loss=chunked", chunk_tokens=4096)
