"""Refuse weights of NaN or infinity: one of them spoils every later step."""

import torch
from torch import Tensor

from lmtrain.errors import DataError


def require_finite(tensor: Tensor, *, name: str, where: object) -> Tensor:
    """Return a tensor of finite values.

    Raises:
        DataError: Some are not; the message counts each kind.
    """
    if not tensor.numel() or all(bool(end.isfinite()) for end in torch.aminmax(tensor)):  # isfinite itself takes 10x
        return tensor
    num_nan, num_infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    dtype = str(tensor.dtype).removeprefix("torch.")
    raise DataError(
        f"{name} in {where} has {num_infinite} infinities and {num_nan} NaN among {tensor.numel()} values of {dtype}; "
        "use the weights in the dtype they were trained in, or an earlier checkpoint."
    )
