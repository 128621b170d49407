"""Take an optimizer step back where the device says so: for any optimizer, and without asking the device on the host.

Weights and state are kept aside for the moment of the step, when the activations of the model are already free.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Key = tuple[int, str]


class Undo:
    """Made before a step, it holds copies; `where` puts them back after it.

    State created by the step itself becomes zero, as in a new optimizer. An optimizer's counts on the host, or on
    another device than the flag, go on: they then count a step without effect.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        with torch.no_grad():
            self._before = {key: tensor.clone() for key, tensor in _tensors(optimizer)}

    @torch.no_grad()
    def where(self, skip: Tensor) -> None:
        """Put everything back if `skip` [], bool, is true; leave it if not."""
        for key, tensor in _tensors(self._optimizer):
            if tensor.device != skip.device:
                continue
            before = self._before.get(key)
            if before is None:
                tensor.masked_fill_(skip, 0)
            else:
                torch.where(skip, before, tensor, out=tensor)
        self._before.clear()


def _tensors(optimizer: Optimizer) -> Iterator[tuple[Key, Tensor]]:
    """Yield each weight and each tensor of its state under a key of its own: this rank's part, in plain tensors."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for number, parameter in enumerate(parameters):
        if parameter.grad is None:
            continue
        yield from _plain(parameter, (number, ""))
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield from _plain(value, (number, name))


def _plain(tensor: Tensor, key: Key) -> Iterator[tuple[Key, Tensor]]:
    """Split a sharded or quantized tensor into its plain parts."""
    if not is_traceable_wrapper_subclass(tensor):
        yield key, tensor.detach()
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        part = getattr(tensor, name)
        if isinstance(part, Tensor):  # a sharded tensor also names its mesh (torch 2.13)
            yield from _plain(part, (key[0], f"{key[1]}.{name}"))
