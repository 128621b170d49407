"""The last line of `train --json`: how a run or a sweep ended, for the program that started it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_REQUEUE, EXIT_TERMINATED
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.events import EARLY_STOPPING
from lmtrain.tracking.sweep_file import read_sweep

STOPPED: Final = {EXIT_INTERRUPTED: "interrupted", EXIT_TERMINATED: "terminated", EXIT_REQUEUE: "queue me again"}


def outcome_line(folder: Path | None, code: int, message: str | None = None) -> dict[str, Any]:
    """Return the line that --json asks for, of a run's or a sweep's folder (None: it has none yet) and its end."""
    line: dict[str, Any] = {"exit_code": code, "exit_reason": message or STOPPED.get(code, ""), "run": None}
    if folder is None or not folder.exists():
        return line
    book = read_sweep(folder)
    if book is None:
        return line | run_outcome(folder, code, message)
    best, states = book.best_trial(), [trial.state for trial in book.trials]
    return line | {
        "exit_reason": line["exit_reason"] or book.reason or "",
        "sweep": str(folder),
        "metric": book.metric,
        "trials": {state: states.count(state) for state in dict.fromkeys(states)},
        "best": None if best is None else asdict(best),
        "unranked": book.unranked,
    }


def run_outcome(folder: Path, code: int, message: str | None) -> dict[str, Any]:
    """Return a run's end as plain values: score in bits per byte, tokens, seconds of all attempts, dollars."""
    from lmtrain.report.runs.attempts import last_step_of
    from lmtrain.report.runs.facts import RunRecord

    facts = RunRecord(folder)
    horizon: Any = read_json(folder / "plan.json").get("horizon", {})
    ended = "failed" if code != EXIT_DONE else "stopped before its budget's end"
    if code == EXIT_DONE and facts.step >= int(horizon.get("steps", 0)) > 0:
        is_by_time = facts.step < int(horizon.get("most_steps") or facts.step)
        ended = f"budget.{horizon.get('time_limit' if is_by_time else 'limited_by')} is spent"
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
