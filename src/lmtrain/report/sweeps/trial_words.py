"""A trial's score in words, and the lead of the best over the next beside its noise."""

from collections.abc import Sequence

from lmtrain.report.comparing.spread import difference
from lmtrain.tracking.sweep_file import SweepTrial


def score_words(trial: SweepTrial) -> str:
    """Return a trial's score, with its spread where several seeds have one."""
    if trial.score is None:
        return "-"
    spread = "" if trial.deviation is None else f", deviation {trial.deviation:.4f} of {len(trial.runs)} seeds"
    return f"{trial.score:.4f}{spread}"


def noise_words(best_first: Sequence[SweepTrial]) -> str | None:
    """Tell whether the best trial's lead is more than noise, None where no seeds repeat."""
    if len(best_first) < 2 or best_first[0].deviation is None:
        return None
    one, other = best_first[0], next((each for each in best_first[1:] if each.runs), None)
    if other is None:
        return None
    of, against = ({str(run.seed): run.score for run in trial.runs if run.score is not None} for trial in (other, one))
    found = difference(of, against)
    if found.plus_minus is None:
        return None
    verdict = "within noise" if found.is_noise else "more than noise"
    lead = f"{found.mean:.4f} ± {found.plus_minus:.4f} (95%)"
    return f"trial {one.number} is {lead} better than trial {other.number}: {verdict}"
