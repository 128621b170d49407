"""The plan of a pipeline: each stage's time, dollars and disk, and those of all together."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from lmtrain.accounting.cluster import MEASURED

STATED: Final = "cluster.mfu"  # begins the source of a speed that the config states
Basis = Literal["measured", "stated", "assumed", ""]


def basis_of(source: str) -> Basis:
    """Return a speed's basis: measured on this machine, stated by the config, or assumed."""
    return "measured" if source.startswith(MEASURED) else "stated" if source.startswith(STATED) else "assumed"


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage; None where something is not known, and a `problem` where there is no plan.

    `tokens` are those read or written. `disk_bytes` are its files while it runs, at most, `kept_bytes` those that stay.
    `basis` is of its time, `reasons` are lines on all figures. `lacking` are lines on a plan beyond its devices or its
    budget. A stage that `is_done` needs nothing more.
    """

    name: str = ""
    verb: str = ""
    tokens: int | None = None
    seconds: float | None = None
    usd: float | None = None
    disk_bytes: int | None = None
    kept_bytes: int | None = None
    basis: Basis = ""
    reasons: tuple[str, ...] = ()
    problem: str = ""
    lacking: tuple[str, ...] = ()
    is_done: bool = False


def done_stage(name: str, verb: str) -> StagePlan:
    """Return the plan of a stage that has ended."""
    return StagePlan(name=name, verb=verb, seconds=0.0, usd=0.0, disk_bytes=0, kept_bytes=0, is_done=True)


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """All stages in their order; `free_bytes` are those of the disk, None where they are not known."""

    name: str
    stages: Sequence[StagePlan]
    free_bytes: int | None = None

    @property
    def seconds(self) -> float | None:
        """Return the time of all stages, None where one is not known."""
        return self._sum(lambda stage: stage.seconds)

    @property
    def usd(self) -> float | None:
        """Return the price of all stages."""
        return self._sum(lambda stage: stage.usd)

    @property
    def disk_bytes(self) -> int | None:
        """Return the most bytes at once: the files of the stage under way, and all that earlier ones keep."""
        kept, most = 0, 0
        for stage in self.stages:
            if stage.disk_bytes is None or stage.kept_bytes is None:
                return None
            most = max(most, kept + stage.disk_bytes)
            kept += stage.kept_bytes
        return most

    @property
    def fits_disk(self) -> bool | None:
        """Tell whether the disk has room for it, None where one of both is not known."""
        if self.disk_bytes is None or self.free_bytes is None:
            return None
        return self.disk_bytes <= self.free_bytes

    @property
    def is_possible(self) -> bool:
        """Tell whether every stage has a plan, and its devices are enough for it."""
        return not any(stage.problem or stage.lacking for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """Return plain values under stable keys for scripts."""
        together = {name: getattr(self, name) for name in ("seconds", "usd", "disk_bytes", "free_bytes", "fits_disk")}
        return {
            "pipeline": self.name,
            "stages": [asdict(stage) for stage in self.stages],
            "together": together,
            "ok": self.is_possible,
        }

    def _sum(self, figure: Callable[[StagePlan], float | None]) -> float | None:
        found = [figure(stage) for stage in self.stages]
        known = [one for one in found if one is not None]
        return sum(known) if len(known) == len(found) else None
