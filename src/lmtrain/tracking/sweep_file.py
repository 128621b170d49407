"""sweep.json in a sweep's folder: its trials with their values, scores and states, replaced whole after each change."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tracking import atomic_files
from lmtrain.tracking.atomic_files import file_lock, is_held, storage_problem
from lmtrain.tracking.run_folder import forget_stop

NAME: Final = "sweep.json"
VERSION: Final = 1
TrialState = Literal[
    "waiting", "running", "paused", "finished", "pruned", "failed", "diverged", "out_of_memory", "stopped"
]
ENDED: Final = ("finished", "pruned", "failed", "diverged", "out_of_memory", "stopped")


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """A held-out text: its source, the bytes of its split, the bytes scored, the tokenizer of its tokens.

    Of conversations `is_assistant`: the bytes scored are the assistant's words, those of its split all turns.
    """

    source: str
    split_bytes: int
    num_bytes: int
    tokenizer: str
    is_assistant: bool = False

    @property
    def text(self) -> tuple[str, int, bool]:
        """Return the text's identity, the same for every tokenizer."""
        return self.source, self.split_bytes, self.is_assistant

    @property
    def words(self) -> str:
        """Name the text, with the bytes scored where they are a part of it."""
        if self.is_assistant or 0 < self.num_bytes < WHOLE * self.split_bytes:
            return f"{self.source} ({self.read_words} held-out bytes)"
        return f"{self.source} ({self.split_bytes:,} held-out bytes)"

    @property
    def read_words(self) -> str:
        """Name the bytes scored, and those of the split."""
        whose = f"{ASSISTANT}, " if self.is_assistant else ""
        return f"{whose}{self.num_bytes:,} of {self.split_bytes:,}"


@dataclass(kw_only=True)
class SweepRun:
    """One run of a trial; `folder` is relative to the sweep's, `seconds` those of all its attempts.

    `held_out` is the text of its score.
    """

    folder: str
    seed: int
    state: TrialState = "waiting"
    score: float | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    held_out: HeldOutText | None = None


@dataclass(kw_only=True)
class SweepTrial:
    """One choice of values, each as it is typed; `score` is the mean of its runs, `deviation` their spread."""

    number: int
    values: dict[str, str]
    state: TrialState = "waiting"
    score: float | None = None
    deviation: float | None = None
    reason: str | None = None
    runs: list[SweepRun] = field(default_factory=list[SweepRun])

    @property
    def words(self) -> list[str]:
        """Return the values as overrides."""
        return [f"{key}={value}" for key, value in self.values.items()]

    @property
    def seconds(self) -> float:
        """Return the time of all its runs."""
        return sum(run.seconds for run in self.runs)


@dataclass(kw_only=True)
class SweepFile:
    """A sweep as its folder describes it; `fingerprint` is of all that makes its trials comparable.

    `reason` is that of its end, None while it runs.
    `unranked` says why its trials' scores do not compare, None if they do: only then is there a best one.
    """

    name: str
    kind: Literal["grid", "search"]
    metric: str
    fingerprint: str
    command: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    space: Mapping[str, str] = field(default_factory=dict[str, str])
    state: str = "RUNNING"
    reason: str | None = None
    best: int | None = None
    unranked: str | None = None
    trials: list[SweepTrial] = field(default_factory=list[SweepTrial])

    def save(self, folder: Path) -> None:
        """Replace sweep.json."""
        ranked = [] if self.unranked else self.finished()
        self.best = ranked[0].number if ranked else None
        atomic_files.write_json(folder / NAME, {"version": VERSION, **asdict(self)})

    def finished(self) -> list[SweepTrial]:
        """Return the finished trials: the lowest score first, or by number where scores do not compare."""
        found = [trial for trial in self.trials if trial.state == "finished" and trial.score is not None]
        return sorted(found, key=lambda trial: (0.0 if self.unranked else trial.score or 0.0, trial.number))

    def texts(self) -> list[HeldOutText]:
        """Return the texts behind the scores that are ranked."""
        return [
            run.held_out for trial in self.trials if trial.state == "finished" for run in trial.runs if run.held_out
        ]

    def best_trial(self) -> SweepTrial | None:
        """Return the trial of the lowest mean."""
        return next((trial for trial in self.trials if trial.number == self.best), None)


def read_sweep(folder: Path) -> SweepFile | None:
    """Read a sweep's folder, None where it is none."""
    path = folder / NAME
    row: dict[str, Any] = {**atomic_files.read_json(path)}
    if not row:
        if path.exists():
            raise DataError(f"{path} is damaged: no whole JSON object; restore it, or give the sweep another run.name.")
        return None
    if row.pop("version", None) != VERSION:
        raise _of_another_version(folder)
    try:
        trials: Any = [_trial(each) for each in row.pop("trials")]
        row.pop("shared", None)  # of 0.1
        return SweepFile(**row, trials=trials)
    except (TypeError, ValueError, KeyError, AttributeError) as odd:  # keys that this version does not know, or lacks
        raise _of_another_version(folder) from odd


def _of_another_version(folder: Path) -> DataError:
    return DataError(
        f"{folder / NAME} is of another version of lmtrain, and this one reads version {VERSION}; go on with that "
        "version, or give the sweep another run.name."
    )


def _trial(row: dict[str, Any]) -> SweepTrial:
    runs: Any = [_run(run) for run in row.pop("runs")]
    row.pop("rounds", None)  # of 0.1
    return SweepTrial(**row, runs=runs)


def _run(row: dict[str, Any]) -> SweepRun:
    held_out = row.pop("held_out", None)
    return SweepRun(**row, held_out=None if held_out is None else HeldOutText(**held_out))


LOCK: Final = ".lock"


@contextmanager
def held_sweep(folder: Path) -> Generator[None]:
    """Make the folder and hold it for this process alone; an older wish for a stop is not meant for it."""
    if (folder / "status.json").exists():
        raise ConfigurationError(f"{folder} is a run's folder; give the sweep another run.name.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise storage_problem(folder, problem) from problem
    refusal = (
        f"{folder} is a sweep under way in process HOLDER; wait for it, stop it (lmtrain stop), or choose another "
        "run.name."
    )
    with file_lock(folder / LOCK, refusal=refusal):
        forget_stop(folder)
        yield


def is_under_way(folder: Path) -> bool:
    """Return whether a process holds a sweep's folder."""
    return (folder / LOCK).exists() and is_held(folder / LOCK)


UNKNOWN: Final = "unknown"
WHOLE: Final = 0.999  # of a text: all of it but its first token, predicted by nothing
ASSISTANT: Final = "the assistant's words"
