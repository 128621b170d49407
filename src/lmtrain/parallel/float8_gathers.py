"""Weights gathered by FSDP2 in fp8 (e4m3) for the layers that multiply in it; masters stay fp32 shards.

FSDP2 asks a shard, a plain tensor here, for two functions, before and after its message (torch 2.13).
A scale is of the whole weight: of its largest number over all shards, found for all layers by one message per step. A
shard is rounded to the compute format and then by the scale, as torchao rounds a weight gathered in the compute format:
losses are the same to the last bit. Passes without gradients (evaluation) gather the compute format; none of them may
come between a pass with gradients and its backward pass.
"""

from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from lmtrain.models.base import LanguageModel

E4M3: Final = torch.float8_e4m3fn


@final
class Float8Weight:
    """The weight of a layer by FSDP2's record of it, gathered in fp8 or in the compute format."""

    def __init__(self, record: Any, scale: Tensor, dtype: torch.dtype) -> None:
        self.record, self._scale, self._dtype = record, scale, dtype
        self._is_in_fp8 = False
        self._others: dict[str, Any] = {"all_gather_outputs": []}  # what the other format is gathered into

    def choose(self, block: Any, _: Any) -> None:
        """Let a pass with gradients gather in fp8, and any other pass in the compute format."""
        is_in_fp8 = torch.is_grad_enabled()
        members = vars(self.record._sharded_local_tensor)  # noqa: SLF001  # of a new tensor after some loads
        for name, function in {"fsdp_pre_all_gather": self._before, "fsdp_post_all_gather": self._after}.items():
            members.pop(name, None)
            members.update({name: function} if is_in_fp8 else {})
        if is_in_fp8 != self._is_in_fp8:
            block.reshard()
            record = vars(self.record)
            own = {name: record.pop(name) for name in ("all_gather_outputs", "_unsharded_param") if name in record}
            record.update(self._others)
            self._others, self._is_in_fp8 = own, is_in_fp8
            self.record._init_extensions()  # noqa: SLF001

    def _before(self, _: Any) -> tuple[tuple[Tensor, ...], None]:
        """Return this rank's bytes, padded as FSDP2 pads shards; gloo sends them as whole numbers alone."""
        values = self.record._sharded_param_data.to(self._dtype).float() * self._scale  # noqa: SLF001
        return (values.to(E4M3).view(torch.uint8),), None

    def _after(self, outputs: tuple[Tensor], _: None, dtype: torch.dtype, *, out: Tensor | None = None) -> Any:
        """Return the whole weight, flat; later gathers fill the same bytes, and the scale is filled in place."""
        layer = self.record._module_info.module  # noqa: SLF001
        return None if out is not None else (layer.float8_weight(outputs[0].view(E4M3), self._scale, dtype), ())


@final
class Float8Gathers:
    """The weights in a sharded model's blocks that are gathered in fp8 wherever gradients are wanted."""

    def __init__(self, model: LanguageModel, group: dist.ProcessGroup, *, dtype: torch.dtype) -> None:
        """Find the weights, of which each rank of the group has a shard, and act ahead of FSDP2's own hooks."""
        self._group, self._dtype = group, dtype
        found = [(block, record) for block in model.blocks for record in _records(block)]
        self._scales = torch.ones(len(found), device=next(model.parameters()).device)
        self._weights = [Float8Weight(one, scale, dtype) for (_, one), scale in zip(found, self._scales, strict=True)]
        self.seen: list[tuple[int, ...]] = []  # cleared by each step: fused optimizers leave no trace of one (2.13)
        eager: Any = torch.compiler.disable
        for (block, _), weight in zip(found, self._weights, strict=True):
            block.register_forward_pre_hook(eager(weight.choose), prepend=True)
        if found:
            model.register_forward_pre_hook(eager(self._refresh), prepend=True)

    def _refresh(self, *_: Any) -> None:
        """Find all scales again if a master has been written to; all ranks write alike."""
        shards: list[Tensor] = [weight.record._sharded_param_data for weight in self._weights]  # noqa: SLF001
        holders = [(weight.record.sharded_param, weight.record._sharded_local_tensor) for weight in self._weights]  # noqa: SLF001
        versions = [(local.data_ptr(), local._version, whole._version) for whole, local in holders]  # noqa: SLF001
        if torch.is_grad_enabled() and versions != self.seen:
            with torch.no_grad():
                norms = torch._foreach_norm(shards, float("inf"))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                largest = torch.stack(norms).to(self._dtype).float()
                dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group)
                self._scales.copy_(torch.finfo(E4M3).max / largest.double().clamp(min=1e-12))  # as torchao
            self.seen = versions


def _records(block: nn.Module) -> list[Any]:
    """Return FSDP2's records of the weights in a block whose layers take them in fp8 (precision.gather=fp8)."""
    state: Any = block._get_fsdp_state() if isinstance(block, FSDPModule) else None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    groups = state._fsdp_param_groups if state else ()  # noqa: SLF001
    infos = [(record, record._module_info) for group in groups for record in group.fsdp_params]  # noqa: SLF001
    return [one for one, info in infos if hasattr(info.module, "float8_weight") and info.param_name == "weight"]
