"""A line for each start and end of a search's trials, and its last lines."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.sweep_page import noise_words, score_words, trial_decimals
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial

MOST_LINES = 5


@dataclass
class TrialLines:
    """The console's side of a search; `folder` is as a person types it."""

    folder: str
    program: str
    fixed: Sequence[str]
    _told: set[str] = field(default_factory=set[str])

    def started(self, trial: SweepTrial, run: SweepRun, *, num_rounds: int) -> None:
        """Tell of a training run."""
        seed = f" seed {run.seed}" if len(trial.runs) > 1 else ""
        part = f", round {trial.rounds + 1} of {num_rounds}" if num_rounds > 1 else ""
        print(f"trial {trial.number}{seed}{part}: {' '.join(trial.words)}", flush=True)

    def ended(self, trial: SweepTrial, sweep: SweepFile) -> None:
        """Tell how a trial ended, beside the best."""
        decimals = trial_decimals(sweep.finished())
        words = _state_words(trial, decimals=decimals)
        best = sweep.best_trial()
        beside = "" if best is None else f" | best {best.score:.{decimals}f} of trial {best.number}"
        print(f"trial {trial.number}: {words}{beside}", flush=True)
        if sweep.unranked:
            self.tell_once(sweep.unranked)

    def promoted(self, kept: Sequence[int], *, num_of: int) -> None:
        """Tell which trials go on."""
        print(f"round over: of {num_of} trials {', '.join(map(str, kept))} go on", flush=True)

    def tell_once(self, words: str) -> None:
        """Print a line, the same one only once."""
        if words not in self._told:
            self._told.add(words)
            print(words, flush=True)

    def last_lines(self, sweep: SweepFile) -> None:
        """Print the best trials, the noise between the first two, and what to type next; no best of other texts."""
        finished = sweep.finished()
        others = [trial.state for trial in sweep.trials if trial.state != "finished"]
        counts = "".join(f", {others.count(state)} {state.replace('_', ' ')}" for state in dict.fromkeys(others))
        trials = format_count(len(sweep.trials), "trial")
        print(
            f"{trials}: {len(finished)} finished{counts}; {sweep.metric}{'' if sweep.unranked else ', lower is better'}"
        )
        decimals = trial_decimals(finished)
        for trial in finished[:MOST_LINES]:
            print(f"  trial {trial.number:<4} {score_words(trial, decimals=decimals):<24} {' '.join(trial.words)}")
        if sweep.unranked:
            print(sweep.unranked)
        elif finished:
            if noise := noise_words(finished):
                print(noise)
            print(f"train the best: {self.program} {shlex.join([*self.fixed, *finished[0].words])}")
        print(f"{self.folder}/sweep.json has all; side by side: lmtrain compare {shlex.quote(self.folder)}")
        importance = "" if sweep.unranked else ", with each key's importance"
        print(f"as a page{importance}: lmtrain report {shlex.quote(self.folder)}")


def _state_words(trial: SweepTrial, *, decimals: int) -> str:
    if trial.state in ("finished", "paused", "pruned"):
        taken = format_quantity(round(trial.seconds, 1), "seconds")
        state = "" if trial.state == "finished" else f"{trial.state}, "
        return f"{state}{score_words(trial, decimals=decimals)}{f' ({trial.reason})' if trial.reason else ''}, {taken}"
    return f"{trial.state.replace('_', ' ')}: {_first_line(trial.reason)}"


def _first_line(reason: str | None) -> str:
    line = (reason or "no reason known").strip().splitlines()[0]
    return line if len(line) <= 200 else f"{line[:199]}…"
