"""The last line of `train --json`: how a run or a sweep ended, for the program that started it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    EXIT_TERMINATED,
    LMTRAIN_ERRORS,
    ConfigurationError,
)
from lmtrain.run.compose.arguments import MULTIRUN
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.events import EARLY_STOPPING
from lmtrain.tracking.redaction import redact, redact_text
from lmtrain.tracking.sweep_file import read_sweep

STOPPED: Final = {EXIT_INTERRUPTED: "interrupted", EXIT_TERMINATED: "terminated", EXIT_REQUEUE: "queue me again"}
FLAGS: Final = ("--json", "--against")


@dataclass(kw_only=True)
class OutcomeLine:
    """The line that --json asks for; `folder` is of the run or sweep, `settings` the config of a run."""

    against: Path | None = None
    is_sweep: bool = False
    speaks: bool = True
    folder: Path | None = None
    settings: dict[str, Any] | None = None
    _message: str | None = field(default=None, init=False)

    def told(self, train: Callable[[], int]) -> int:
        """Train, and print the line whatever the end; return the exit code.

        Raises:
            ConfigurationError: There is no baseline, or one for several runs; nothing was started.
        """
        baseline, code = list[Any](), 1
        try:
            baseline = self._baseline()
            code = train()
        except LMTRAIN_ERRORS as error:
            code, self._message = error.exit_code, redact_text(str(error))
            raise
        finally:
            if self.speaks:
                print(json.dumps(self._line(code, baseline)), flush=True)
        return code

    def _baseline(self) -> list[Any]:
        if self.against is None:
            return []
        if self.is_sweep:
            raise ConfigurationError(f"--against {self.against} judges one run, and -m trains several; leave it out.")
        from lmtrain.report.comparison import baseline_runs

        return [*baseline_runs(self.against.absolute())]

    def _line(self, code: int, baseline: Sequence[Any]) -> dict[str, Any]:
        line: dict[str, Any] = {"exit_code": code, "exit_reason": self._message or STOPPED.get(code, ""), "run": None}
        if self.folder is None or not self.folder.exists():
            return line
        book = read_sweep(self.folder)
        if book is not None:
            best, states = book.best_trial(), [trial.state for trial in book.trials]
            return line | {
                "exit_reason": line["exit_reason"] or book.reason or "",
                "sweep": str(self.folder),
                "metric": book.metric,
                "trials": {state: states.count(state) for state in dict.fromkeys(states)},
                "best": None if best is None else asdict(best),
                "unranked": book.unranked,
            }
        changed = self._changed_settings() if code == EXIT_DONE else None
        line |= run_outcome(self.folder, code, self._message or changed)
        if baseline:
            from lmtrain.report.comparison import judged

            line["against"] = judged(self.folder, baseline, name=str(self.against), reason=changed).to_json()
        return line

    def _changed_settings(self) -> str | None:
        """Say that a run was done already with other settings than asked for, None if it has these."""
        from lmtrain.report.compared_runs import changed_settings

        changed = changed_settings(self.folder, redact(self.settings)) if self.folder and self.settings else ""
        return f"nothing was trained: the run is done with {changed}" if changed else None


def run_outcome(folder: Path, code: int, message: str | None) -> dict[str, Any]:
    """Return a run's end as plain values: score in bits per byte, tokens, seconds of all attempts, dollars."""
    from lmtrain.report.runs.attempts import last_step_of
    from lmtrain.report.runs.facts import RunRecord

    facts = RunRecord(folder)
    horizon: Any = read_json(folder / "plan.json").get("horizon", {})
    ended = "failed" if code != EXIT_DONE else "stopped before its budget's end"
    if code == EXIT_DONE and facts.step >= int(horizon.get("steps", 0)) > 0:
        ended = f"budget.{horizon.get('limited_by')} is spent"
    elif code == EXIT_DONE and last_step_of(folder, EARLY_STOPPING) == facts.step:
        ended = f"callbacks.early_stopping ended it at step {facts.step}"
    return {
        "run": str(folder),
        "exit_reason": message or STOPPED.get(code) or ended,
        "score": None if facts.held_out is None else facts.held_out.after,
        "metric": BITS_PER_BYTE,
        "step": facts.step,
        "tokens": facts.tokens,
        "inherited_tokens": facts.own.inherited_tokens,
        "seconds": sum(attempt.wall_seconds for attempt in facts.attempts),
        "usd": facts.usd,
    }


def outcome_line(words: Sequence[str], *, is_first_rank: bool) -> tuple[OutcomeLine | None, list[str]]:
    """Take --json and --against RUN out of a command line; without them there is no line."""
    parser = FlagParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", type=Path)
    if not any(word.partition("=")[0] in FLAGS for word in words):
        return None, [*words]
    asked, others = parser.parse_known_args([*words])
    is_sweep = not MULTIRUN.isdisjoint(others)
    return OutcomeLine(against=asked.against, is_sweep=is_sweep, speaks=is_first_rank), others
