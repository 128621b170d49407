"""Measure a device until two results agree: other work on the machine only ever slows one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.doctor.finding import Finding, graded

TOLERANCE: Final = 0.05  # of a rate, between two results on an idle machine
MOST_TRIES: Final = 5


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The device at the best rates of all tries; `spread` is the last two's largest difference, as a share."""

    device: MeasuredDevice
    num_tries: int
    spread: float

    @property
    def finding(self) -> Finding:
        """Return whether the rates can be relied on."""
        agree = self.spread <= TOLERANCE
        found = f"{self.num_tries} tries, the last two {'within' if agree else 'differ by'} {self.spread:.1%}"
        fix = f"end other work and ask again: two results within {TOLERANCE:.0%} are those of an idle machine"
        return graded("measurement", found if agree else f"the machine is busy: {found}", fix=fix, is_worse=not agree)


def measure_until_two_agree(measure: Callable[[], MeasuredDevice]) -> Settled:
    """Measure at least twice and at most five times, and keep the best rates."""
    last = measure()
    best, spread, num_tries = last, 1.0, 1
    while num_tries < MOST_TRIES and spread > TOLERANCE:
        this = measure()
        num_tries += 1
        spread = _spread(_rates(last), _rates(this))
        best, last = _best(best, this), this
    return Settled(device=best, num_tries=num_tries, spread=spread)


def _rates(device: MeasuredDevice) -> dict[str, float]:
    copied = device.copy_bytes_per_second
    return {**device.matmul_flops, **({} if copied is None else {"copy": copied})}


def _spread(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    return max(abs(first[name] - second[name]) / max(first[name], second[name]) for name in first)


def _best(first: MeasuredDevice, second: MeasuredDevice) -> MeasuredDevice:
    flops = {name: max(rate, second.matmul_flops[name]) for name, rate in first.matmul_flops.items()}
    copies = [each for each in (first.copy_bytes_per_second, second.copy_bytes_per_second) if each is not None]
    return replace(first, matmul_flops=flops, copy_bytes_per_second=max(copies, default=None))
