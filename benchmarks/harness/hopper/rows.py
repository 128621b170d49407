"""What is being measured on, and a row of a table: a figure with its share of the data sheet's peak, or the reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lmtrain.accounting.machine.hardware import Device, MatmulDtype, find_device
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.precision.cpu_features import cpu_name

Row = dict[str, Any]
REFUSALS = (ConfigurationError, EnvironmentProblem, RuntimeError, NotImplementedError, ImportError, ValueError)


@dataclass(frozen=True)
class Bench:
    """Where and how large: a toy has narrow models and few calls; `peers` is a folder of checkouts, or empty."""

    device: torch.device
    is_toy: bool
    known: Device | None
    peers: str = ""

    @property
    def name(self) -> str:
        """Return the product name of the device."""
        return torch.cuda.get_device_name() if self.device.type == "cuda" else cpu_name()

    def peak_flops(self, dtype: MatmulDtype) -> float | None:
        """Return dense FLOP/s of the data sheet, None where it is not known."""
        return self.known.peak_flops(dtype) if self.known else None

    @property
    def peak_bytes_per_second(self) -> float | None:
        """Return the memory bandwidth of the data sheet, None where it is not known."""
        return self.known.memory_bytes_per_second if self.known else None


def this_machine(*, is_toy: bool, peers: str = "") -> Bench:
    """Return a GPU where there is one; a CPU only makes toys."""
    if torch.cuda.is_available():
        return Bench(torch.device("cuda"), is_toy=is_toy, known=find_device(torch.cuda.get_device_name()), peers=peers)
    return Bench(torch.device("cpu"), is_toy=True, known=None, peers=peers)


def measured(what: Row, measure: Callable[[], Row]) -> Row:
    """Return a row with what was measured, or with the reason why it was not."""
    try:
        return what | measure()
    except REFUSALS as reason:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return what | {"not_measured": str(reason).strip().splitlines()[0][:200] if str(reason) else repr(reason)}


def rate(amount: float, seconds: float, peak: float | None) -> Row:
    """Return seconds, the rate and its share of a peak."""
    return {"seconds": seconds, "per_second": amount / seconds, "of_peak": amount / seconds / peak if peak else None}
