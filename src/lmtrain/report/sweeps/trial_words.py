"""A trial's score in words, and the lead of the best over the next beside its noise."""

from collections.abc import Sequence

from lmtrain.report.comparing.score_decimals import score_decimals
from lmtrain.report.comparing.spread import difference
from lmtrain.tracking.sweep_file import SweepTrial


def trial_decimals(trials: Sequence[SweepTrial]) -> int:
    """Return the decimals of the trials' scores."""
    return score_decimals(trial.score for trial in trials if trial.score is not None)


def score_words(trial: SweepTrial, *, decimals: int) -> str:
    """Return a trial's score, with its spread where several seeds have one."""
    if trial.score is None:
        return "-"
    spread = "" if trial.deviation is None else f", deviation {trial.deviation:.{decimals}f} of {len(trial.runs)} seeds"
    return f"{trial.score:.{decimals}f}{spread}"


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
    decimals = trial_decimals(best_first)
    lead = f"{found.mean:.{decimals}f} ± {found.plus_minus:.{decimals}f} (95%)"
    return f"trial {one.number} is {lead} better than trial {other.number}: {verdict}"
