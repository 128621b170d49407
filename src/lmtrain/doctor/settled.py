"""A device measured until two results agree, and what is found of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

from lmtrain.accounting.observed.agreement import TOLERANCE, Tries, until_two_agree
from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.doctor.finding import Finding, graded


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The device at the best rates of all tries."""

    device: MeasuredDevice
    tries: Tries[MeasuredDevice]

    @property
    def finding(self) -> Finding:
        """Return whether the rates can be relied on."""
        fix = f"end other work and ask again: two results within {TOLERANCE:.0%} are those of an idle machine"
        return graded("measurement", self.tries.words, fix=fix, is_worse=not self.tries.agree)


def measure_until_two_agree(measure: Callable[[], MeasuredDevice]) -> Settled:
    """Measure at least twice and at most five times, and keep the best rates."""
    tries = until_two_agree(measure, _rates)
    device = reduce(MeasuredDevice.at_best, tries.results)
    return Settled(device=replace(device, doubt="" if tries.agree else tries.words), tries=tries)


def _rates(device: MeasuredDevice) -> dict[str, float]:
    copied = device.copy_bytes_per_second
    return {**device.matmul_flops, **({} if copied is None else {"copy": copied})}
