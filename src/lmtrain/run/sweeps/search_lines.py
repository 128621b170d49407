"""The lines that a sweep prints: each start and end of a search's trial, and the ranking at the end."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.sweep_page import noise_words, score_words
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial

MAX_LINES: Final = 5  # of the best trials
MAX_CHARACTERS: Final = 200  # of a reason


@dataclass(frozen=True)
class SearchLines:
    """Lines about a sweep; `folder` is relative to here, `fixed` are the overrides of every trial."""

    folder: str
    program: str
    fixed: Sequence[str]

    def started(self, trial: SweepTrial, run: SweepRun) -> None:
        """Print the start of a run."""
        seed = f" seed {run.seed}" if len(trial.runs) > 1 else ""
        print(f"trial {trial.number}{seed}: {' '.join(trial.words)}", flush=True)

    def ended(self, trial: SweepTrial, sweep: SweepFile) -> None:
        """Print how a trial ended, and the best so far."""
        state = "" if trial.state == "finished" else f"{trial.state.replace('_', ' ')}: "
        parts = [score_words(trial)] if trial.score is not None else []
        parts += [_first_line(trial.reason)] if trial.reason else []
        parts += [format_quantity(round(trial.seconds, 1), "seconds")]
        best = sweep.best_trial()
        so_far = "" if best is None else f" | best {best.score:.4f} of trial {best.number}"
        print(f"trial {trial.number}: {state}{', '.join(parts)}{so_far}", flush=True)

    def last(self, sweep: SweepFile) -> None:
        """Print the best trials, the noise between the first two, and what to type next; no best if incomparable."""
        finished = sweep.finished()
        states = [trial.state for trial in sweep.trials]
        counts = ", ".join(f"{states.count(state)} {state.replace('_', ' ')}" for state in dict.fromkeys(states))
        ranked = "" if sweep.unranked else ", lower is better"
        print(f"{format_count(len(states), 'trial')}: {counts}; {sweep.metric}{ranked}")
        for trial in finished[:MAX_LINES]:
            print(f"  trial {trial.number:<4} {score_words(trial):<24} {' '.join(trial.words)}")
        for trial in [each for each in sweep.trials if each.score is None][:MAX_LINES]:
            reason = f": {_first_line(trial.reason)}" if trial.reason else ""
            print(f"  trial {trial.number:<4} {trial.state.replace('_', ' '):<24} {' '.join(trial.words)}{reason}")
        if sweep.unranked:
            print(sweep.unranked)
        elif finished:
            if noise := noise_words(finished):
                print(noise)
            print(f"train the best: {self.program} {shlex.join([*self.fixed, *finished[0].words])}")
        print(f"{self.folder}/sweep.json has all; side by side: lmtrain compare {shlex.quote(self.folder)}")
        print(f"as a page: lmtrain report {shlex.quote(self.folder)}")


def _first_line(reason: str) -> str:
    return reason.strip().splitlines()[0][:MAX_CHARACTERS]
