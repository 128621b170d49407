"""Optimizer state in host memory: its bytes there, and the time of its way to the device and back in a step."""

from dataclasses import dataclass
from typing import Any

from lmtrain.accounting.machine.hardware import find_device
from lmtrain.accounting.training_plan.step_time import Efficiency


@dataclass(frozen=True, kw_only=True)
class OffloadPlan:
    """A device's optimizer state in host memory, `host_bytes` of it, and the link to there.

    `link_bytes_per_second` of the data sheet are of one direction, None where they are not known.
    """

    host_bytes: int
    link_bytes_per_second: float | None

    @property
    def seconds(self) -> float | None:
        """Return the time of a step for moving it both ways; nothing is computed meanwhile."""
        rate = self.link_bytes_per_second
        return None if rate is None else 2 * self.host_bytes / (rate * Efficiency().links)

    def to_json(self) -> dict[str, Any]:
        """Return bytes, rate and seconds."""
        return {
            "host_bytes": self.host_bytes,
            "link_bytes_per_second": self.link_bytes_per_second,
            "seconds_per_step": self.seconds,
        }


def planned_offload(host_bytes: int, *, device: str | None) -> OffloadPlan:
    """Return the plan for so many bytes of a device with this name."""
    known = find_device(device or "")
    return OffloadPlan(host_bytes=host_bytes, link_bytes_per_second=known.host_bytes_per_second if known else None)
