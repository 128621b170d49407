"""Explain why a run took another time than planned: named parts that sum to the whole difference."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lmtrain.accounting.observed.time_accounts import COMPUTE, EVALUATION, TimeBalance

UTILIZATION: Final = "utilization"


@dataclass(frozen=True, kw_only=True)
class PlanAndFact:
    """Planned and actual seconds of the steps done, and the difference by reason.

    A plan has computing and evaluation. `utilization` is the excess of computing
    over the plan; every other part is a kind of time with a smaller or no share in the plan.
    """

    planned_seconds: float
    seconds: float
    planned_mfu: float
    mfu: float
    mfu_source: str
    reasons: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def difference_seconds(self) -> float:
        """Return how much longer it took than planned; below 0 is faster."""
        return self.seconds - self.planned_seconds


def explain(
    balance: TimeBalance,
    *,
    planned_seconds: float,
    planned_mfu: float,
    mfu_source: str,
    planned_evaluation_seconds: float = 0.0,
) -> PlanAndFact:
    """Compare the clock of a run with the seconds planned for the steps it did, the largest reason first.

    `planned_seconds` are of computing. The utilization reached follows from the plan's: the same FLOPs, in
    another time.
    """
    computed = balance.seconds.get(COMPUTE, 0.0)
    reasons = {kind: seconds for kind, seconds in balance.seconds.items() if kind != COMPUTE}
    reasons[UTILIZATION] = computed - planned_seconds
    if planned_evaluation_seconds:
        reasons[EVALUATION] = reasons.get(EVALUATION, 0.0) - planned_evaluation_seconds
    return PlanAndFact(
        planned_seconds=planned_seconds + planned_evaluation_seconds,
        seconds=balance.wall_seconds,
        planned_mfu=planned_mfu,
        mfu=planned_mfu * planned_seconds / computed if computed else 0.0,
        mfu_source=mfu_source,
        reasons=dict(sorted(reasons.items(), key=lambda reason: -abs(reason[1]))),
    )
