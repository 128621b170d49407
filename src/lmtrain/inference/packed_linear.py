"""Linear layers with oneDNN's products of many tokens, on processors where MKL leaves half of the speed.

MKL takes AVX-512 on Intel's processors alone. On an AMD EPYC its fp32 products of 64 to 4,096 tokens run at 100 to 112
GFLOP/s a core, oneDNN's at 180 to 256 (torch 2.13, 128 x 384 to 512 x 128). I inner and O outer values.
"""

from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.precision.cpu_products import is_mkl_slow

FEWEST_TOKENS: Final = 12  # with fewer the start of a product takes longer than MKL's whole
MAX_BYTES: Final = 2**30  # of weights: each is kept twice
USUAL_TOKENS: Final = 256
# Without a public name: torch.utils.mkldnn drops a layer's own weight, which is the faster one for few tokens.
_product: Final = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
_packed: Final = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001


@final
class PackedLinear(nn.Linear):
    """A linear layer with its weight a second time, in oneDNN's own order."""

    packed: Tensor

    @override
    def forward(self, input: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        """Multiply: [*B, I] -> [*B, O]."""
        is_other_format = torch.is_autocast_enabled("cpu")  # the packed weight has fp32 products alone
        if is_other_format or input.numel() < FEWEST_TOKENS * self.in_features:
            return F.linear(input, self.weight, self.bias)
        return _product(input, self.packed, self.bias, "none", [], "")


def pack_linears(model: nn.Module) -> None:
    """Pack a model's fp32 matrices where that is faster, and affordable."""
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    is_fp32_on_cpu = all(each.weight.device.type == "cpu" and each.weight.dtype == torch.float32 for each in linears)
    num_bytes = sum(each.weight.nbytes for each in linears)
    if not (is_fp32_on_cpu and num_bytes <= MAX_BYTES and is_mkl_slow()):
        return
    for module in linears:
        module.__class__ = PackedLinear
        module.packed = _packed(module.weight.detach().contiguous(), USUAL_TOKENS)
