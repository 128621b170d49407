"""An operation's FLOPs and bytes, from the shapes of its tensors: each tensor read or written once.

Products by torch's own counter. A causal attention's are half of it, for its kernel skips the masked half; its
backward pass has five products where the forward pass has two (arXiv 2307.08691 section 3.1).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.training_plan.simulated_step import Kernel, Phase
from lmtrain.simulate.live_memory import tensors_in

# On a GPU these run no kernel: memory is set aside, or seen otherwise.
WITHOUT_KERNEL: Final = (
    "_unsafe_view",
    "device",
    "empty",
    "new_empty",
    "resize",
    "detach",
    "alias",
    "lift",
    "wait_tensor",
    "_local_scalar",
)
ATTENTION: Final = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")
LINEAR: Final = ("mm", "addmm")
FILLS_A_PART: Final = "all_gather_copy_in"
OF_BACKWARD: Final = 2.5
FORMATS: Final[Mapping[torch.dtype, MatmulDtype]] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
}
OF_A_CAST: Final = 2.5  # of an operand's bytes: read for its largest value, read again, and written at half the size


@dataclass(frozen=True, kw_only=True)
class Formats:
    """The formats of products by the dtype of their operands.

    `fp8_but` None has no fp8; otherwise linear layers' bf16 products are fp8's, but for those with a side of this size,
    the head's. Their operands are cast before each.
    """

    by_dtype: Mapping[torch.dtype, MatmulDtype] = field(default_factory=lambda: FORMATS)
    fp8_but: int | None = None

    def of(self, name: str, operands: Sequence[Tensor]) -> MatmulDtype | None:
        """Return the format of an operation's product, None where its operands are of none."""
        known: list[MatmulDtype] = [self.by_dtype[one.dtype] for one in operands if one.dtype in self.by_dtype]
        if not known:
            return None
        sides = {side for one in operands for side in one.shape}
        is_linear = name.startswith(LINEAR) and self.fp8_but is not None and self.fp8_but not in sides
        if is_linear and known[0] == "bf16":
            return "fp8"
        return known[0]


def kernels_of(
    func: Any, arguments: list[Any], named: dict[str, Any], made: Any, *, phase: Phase, formats: Formats
) -> list[Kernel]:
    """Return an operation's kernels: its own, after a cast of the operands of a product in fp8."""
    kernel = kernel_of(func, arguments, named, made, phase=phase, formats=formats)
    if kernel is None:
        return []
    if kernel.dtype != "fp8":
        return [kernel]
    operands = sum(map(_bytes, tensors_in([*arguments, *named.values()])))
    return [Kernel(flops=0.0, num_bytes=OF_A_CAST * operands, phase=phase), kernel]


def kernel_of(
    func: Any,
    arguments: list[Any],
    named: dict[str, Any],
    made: Any,
    *,
    phase: Phase,
    formats: Formats | None = None,
) -> Kernel | None:
    """Return an operation's kernel, None for one without."""
    name: str = func.__name__
    if func.is_view or name.startswith(WITHOUT_KERNEL):
        return None
    read, written = _moved(name, arguments, named, made)
    num_bytes = sum(map(_bytes, read)) + sum(map(_bytes, written))
    if not num_bytes:
        return None
    flops = _flops(func, arguments, named, made)
    dtype = (formats or Formats()).of(name, read) if flops else None
    is_attention = name.startswith(ATTENTION)
    return Kernel(flops=flops, num_bytes=num_bytes, dtype=dtype, phase=phase, is_attention=is_attention)


def _flops(func: Any, arguments: list[Any], named: dict[str, Any], made: Any) -> float:
    name: str = func.__name__
    if name.startswith(ATTENTION):
        return _attention_flops(name, [*arguments, *named.values()])
    count: Any = flop_registry.get(func.overloadpacket)
    return 0.0 if count is None else count(*arguments, **named, out_val=made)


def _attention_flops(name: str, arguments: list[Any]) -> float:
    """Count two products of [Tq, K] by [K, Tk] a head, [B, H, T, K]; in the backward pass after a gradient."""
    is_backward = "backward" in name
    query, key = arguments[1:3] if is_backward else arguments[:2]
    batch, heads, tokens, width = query.shape
    is_causal = any(one is True for one in arguments)
    flops = 4.0 * batch * heads * tokens * key.shape[2] * width * (0.5 if is_causal else 1.0)
    return flops * (OF_BACKWARD if is_backward else 1.0)


def _moved(
    name: str, arguments: list[Any], named: dict[str, Any], made: Any
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return an operation's read and written tensors.

    FSDP2 fills a rank's own part of a gather's buffer. An operation without a result writes its first argument; a fused
    optimizer's kernel writes weights and moments, all of its lists but the gradients.
    """
    if name.startswith(FILLS_A_PART):
        own = tensors_in(arguments[0])
        return own, own
    if "out" in named:
        return tensors_in(arguments), tensors_in(named["out"])
    every = [*arguments, *named.values()]
    if name.startswith("_fused"):
        lists = [one for one in arguments if isinstance(one, list)]
        return tensors_in(every), tensors_in([one for index, one in enumerate(lists) if index != 1])
    return tensors_in(every), tensors_in(made) or tensors_in(arguments[:1])


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; of one spread over more places, those of its storage."""
    return min(math.prod(tensor.shape) * tensor.element_size(), tensor.untyped_storage().nbytes())
