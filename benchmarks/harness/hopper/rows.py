"""What is being measured on, and a row of a table: a figure with its share of the data sheet's peak, or the reason."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.harness.hopper.deadline import deadline
from lmtrain.accounting.machine.hardware import Device, MatmulDtype, find_device
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.precision.cpu_features import cpu_name

Row = dict[str, Any]
REFUSALS = (ConfigurationError, EnvironmentProblem, RuntimeError, NotImplementedError, ImportError, ValueError)


@dataclass(frozen=True)
class Bench:
    """Where, how large and what: a toy has narrow models and few calls; `peers` is a folder of checkouts, or empty.

    No `cases` or `variants` mean all of them. Rows that are `held` from before are not measured again.
    """

    device: torch.device
    is_toy: bool
    known: Device | None
    peers: str = ""
    cases: Sequence[str] = ()
    variants: Sequence[str] = ()
    row_seconds: float | None = None
    held: Mapping[str, Sequence[Row]] = field(default_factory=dict[str, Sequence[Row]])

    def wants(self, part: str, variant: str, /, **what: Any) -> bool:
        """Tell whether a row is asked for and not there yet."""
        if (self.cases and what.get("model", self.cases[0]) not in self.cases) or (
            self.variants and variant not in self.variants
        ):
            return False
        held = (row for row in self.held.get(part, ()) if "not_measured" not in row)
        return not any(what.items() <= row.items() for row in held)

    def measured(self, what: Row, measure: Callable[[], Row]) -> Row:
        """Return a row with its figures, or with the reason for none: a refusal, or more than `row_seconds`."""
        try:
            with deadline(self.row_seconds):
                return what | measure()
        except REFUSALS as reason:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return what | {"not_measured": str(reason).strip().splitlines()[0][:200] if str(reason) else repr(reason)}

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


def this_machine(*, is_toy: bool, **more: Any) -> Bench:
    """Return a GPU where there is one; a CPU only makes toys. `more` are other settings of the bench."""
    if torch.cuda.is_available():
        return Bench(torch.device("cuda"), is_toy=is_toy, known=find_device(torch.cuda.get_device_name()), **more)
    return Bench(torch.device("cpu"), is_toy=True, known=None, **more)


def rate(amount: float, seconds: float, peak: float | None) -> Row:
    """Return seconds, the rate and its share of a peak."""
    return {"seconds": seconds, "per_second": amount / seconds, "of_peak": amount / seconds / peak if peak else None}
