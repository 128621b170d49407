"""Keep an optimizer's state in host memory between steps, and a piece of it on the device during one.

The update itself stays on the device, with the numbers of the optimizer alone: parameters are updated some at a time,
each with its state brought over and taken back. Optimizer state is half of AdamW's memory or more
(https://arxiv.org/abs/2101.06840 computes on the host instead).
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from lmtrain.accounting.model.optimizer_state import STATE_PIECE_BYTES
from lmtrain.optim.sharded import local

HOST: Final = torch.device("cpu")
COUNT: Final = "step"  # torch's optimizers keep it on the host, unless a kernel reads it
READ_BY_KERNELS: Final = ("fused", "capturable")

Piece = list[list[Tensor]]  # the parameters of each group


def keep_state_on_host(optimizer: Optimizer, *, piece_bytes: int = STATE_PIECE_BYTES) -> Optimizer:
    """Return the same optimizer, with its state in host memory between steps.

    At most `piece_bytes` of weights, or one tensor, have their state on the device at once.
    """
    optimizer.__class__ = _on_host(type(optimizer))
    vars(optimizer)["_piece_bytes"] = piece_bytes
    return optimizer


@cache
def _on_host(plain: type[Optimizer]) -> type[Optimizer]:
    return type(f"{plain.__name__}OnHost", (_StateOnHost, plain), {})


class _StateOnHost(Optimizer):
    """Before an optimizer's class: its step over pieces, its loading without the device."""

    _piece_bytes: int

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the closure's loss with gradients, and update the parameters piece by piece."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        try:
            for piece in _pieces(groups, self._piece_bytes):
                self.param_groups = [
                    {**group, "params": parameters} for group, parameters in zip(groups, piece, strict=True)
                ]
                self._bring(piece)
                super().step()
                for parameter in chain.from_iterable(piece):
                    state = self.state.get(parameter, {})
                    state.update({name: _kept(value) for name, value in state.items()})
        finally:
            for group, stepped in zip(groups, self.param_groups, strict=True):
                group.update({name: value for name, value in stepped.items() if name != "params"})  # counts of steps
            self.param_groups = groups
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from saved state, left in host memory: torch's own loading fills the device with all of it."""
        super().load_state_dict({**state_dict, "state": {}})
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for parameter, key in zip(group["params"], saved["params"], strict=True):
                if key in state_dict["state"]:
                    state = state_dict["state"][key]
                    self.state[parameter] = {name: _kept(value) for name, value in state.items()}

    def _bring(self, piece: Piece) -> None:
        for group, parameters in zip(self.param_groups, piece, strict=True):
            counts_here = any(group.get(name) for name in READ_BY_KERNELS)
            for parameter in parameters:
                state = self.state.get(parameter, {})
                for name, value in state.items():
                    if isinstance(value, Tensor) and (name != COUNT or counts_here):
                        state[name] = value.to(parameter.device, non_blocking=True)


def _pieces(groups: list[dict[str, Any]], piece_bytes: int) -> Iterator[Piece]:
    """Yield the parameters with gradients in order, in pieces of at most `piece_bytes` of weights or of one tensor."""
    piece: Piece = [[] for _ in groups]
    size = 0
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            num_bytes = local(parameter).numel() * parameter.element_size()
            if size and size + num_bytes > piece_bytes:
                yield piece
                piece, size = [[] for _ in groups], 0
            piece[number].append(parameter)
            size += num_bytes
    yield piece  # also without a gradient at all: groups count their steps


def _kept(value: Any) -> Any:
    """Return a value in host memory, plain tensors pinned where a GPU copies from them; no tensor as it is."""
    if not isinstance(value, Tensor) or value.device == HOST:
        return value
    if type(value) is not Tensor:  # a shard, or a packed tensor
        return value.to(HOST)
    there = torch.empty_like(value, device=HOST, pin_memory=value.is_cuda)
    return there.copy_(value)  # waits for the device: a save may read it at once
