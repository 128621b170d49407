"""A trial's score in words, the lead of the best over the next beside its noise, and a run gone on since."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.report.comparing.score_decimals import score_decimals
from lmtrain.report.comparing.spread import difference
from lmtrain.report.runs.facts import RunFacts
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial


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


def trained_on(told: SweepFile, sweep: Path, trials: Mapping[Path, RunFacts]) -> dict[Path, str]:
    """Return the trials' runs with another score since, and both scores: they trained on after the search."""
    if told.metric != BITS_PER_BYTE:
        return {}
    scores = {(sweep / run.folder).resolve(): run.score for trial in told.trials for run in trial.runs if run.score}
    now = {path: facts.held_out.after for path, facts in trials.items() if facts.held_out}
    return {
        path: f"trained on after the search, to {now[path]:.4f}; {score:.4f} is its trial's score"
        for path, score in scores.items()
        if path in now and not math.isclose(now[path], score)
    }
