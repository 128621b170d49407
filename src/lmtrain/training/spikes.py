"""Recognise a harmful step on the device: its loss or gradient norm stands out, or is not finite.

As in OLMo's skip-step optimizer (https://arxiv.org/abs/2501.00656, section 3.1): mean and standard deviation are those
of the last steps, skipped ones among them, so a run with a lasting higher loss goes on.
"""

from collections.abc import Iterator
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lmtrain.accounting.options.parts import SpikeFacts
from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.parallel.gradients import sum_over_ranks

MIN_STEPS: Final = 4  # fewer hardly have a deviation
MAX_STEPS: Final = 1_000_000  # 8 MB
Answer = Literal["skip", "halt", "rewind"]


def none() -> None:
    """Make every step, at any loss."""


def spike_filter_facts(*, then: Answer = "skip") -> SpikeFacts:
    """Copy weights and state where a step may be taken back."""
    return SpikeFacts(takes_back=then == "skip")


class SpikeFilter(nn.Module):
    """Judge steps by a window of those before; its state is in buffers, saved in the module's checkpoints."""

    recent: Tensor
    num_seen: Tensor
    num_skipped: Tensor

    def __init__(
        self, *, num_sigmas: float, window_steps: int, then: Answer = "skip", leave_out_batches: int = 1, most: int = 10
    ) -> None:
        """A spike is `num_sigmas` standard deviations above the mean of `window_steps` steps.

        Until half the window is full only a loss or norm that is not finite is one. Then the step is taken back
        (`skip`), or the run stops, or goes back to the checkpoint before it (`rewind`) and leaves
        `leave_out_batches` batches out, from the spike's on, at most `most` times.
        """
        super().__init__()
        for name, value in (("leave_out_batches", leave_out_batches), ("most", most)):
            require_count(f"spikes.{name}", value)
        require_number("spikes.num_sigmas", num_sigmas, above=0, usual="6")
        require_number("spikes.window_steps", window_steps, at_least=MIN_STEPS, at_most=MAX_STEPS, usual="128")
        self.then: Answer = then
        self.leave_out_batches, self.most = leave_out_batches, most
        self._num_sigmas = num_sigmas
        self._window_steps = window_steps
        self.register_buffer("recent", torch.zeros(2, window_steps))  # loss, gradient norm
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_skipped", torch.zeros((), dtype=torch.int64))

    @property
    def takes_back(self) -> bool:
        """Return whether a spike changes nothing, and training goes on."""
        return self.then == "skip"

    @property
    def goes_back(self) -> bool:
        """Return whether the run goes back to the checkpoint before a spike."""
        return self.then == "rewind"

    @torch.no_grad()
    def judge(self, values: Tensor) -> Tensor:
        """Return whether a step with these [2], loss and gradient norm, is a spike: bool [], alike on all ranks."""
        values = values.to(self.recent.dtype)
        is_finite = values.isfinite().all()
        skip = ~is_finite | self._stands_out(values)
        skip = sum_over_ranks(skip.int()) > 0
        slots = torch.arange(self._window_steps, device=self.recent.device)
        is_slot = (slots == self.num_seen % self._window_steps) & is_finite
        self.recent.copy_(torch.where(is_slot, values[:, None], self.recent))
        self.num_seen += is_finite
        self.num_skipped += skip
        return skip

    def _stands_out(self, values: Tensor) -> Tensor:
        slots = torch.arange(self._window_steps, device=self.recent.device)
        is_filled = slots < self.num_seen
        num_filled = is_filled.sum().clamp(min=1)
        mean = (self.recent * is_filled).sum(1) / num_filled
        variance = ((self.recent - mean[:, None]).square() * is_filled).sum(1) / (num_filled - 1).clamp(min=1)
        is_spike = (values > mean + self._num_sigmas * variance.sqrt()).any()
        return is_spike & (self.num_seen >= self._window_steps // 2)


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
    """Yield each weight and each tensor of its state under its own key: this rank's part, in plain tensors."""
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
