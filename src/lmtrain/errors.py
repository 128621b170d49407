"""The three ways a run can be refused, each with a stable exit code for scripts."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

EXIT_DONE = 0
EXIT_NO = 1
EXIT_CONFIGURATION = 2
EXIT_ENVIRONMENT = 3
EXIT_DATA = 4
EXIT_REQUEUE = 85
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class ConfigurationError(ValueError):
    """Something a person typed cannot be: key, value, rule and nearest fix in one message."""

    exit_code = EXIT_CONFIGURATION


class EnvironmentProblem(RuntimeError):
    """The machine lacks a need of the command: a full disk, a missing package, an unfit device."""

    exit_code = EXIT_ENVIRONMENT


class Diverged(EnvironmentProblem):
    """A run's loss or gradient is no number any more."""


class GoBack(Exception):  # no error yet: the run goes on from the checkpoint before
    """A step is a spike, and its batch is to be left out; `step` is counted from 1, `most` counts the times."""

    exit_code = EXIT_REQUEUE  # in the run's status, until it goes on

    def __init__(self, *, step: int, loss: float, gradient_norm: float, num_batches: int, most: int) -> None:
        super().__init__(f"step {step} has loss {loss:g} and gradient norm {gradient_norm:g}")
        self.step, self.loss, self.gradient_norm = step, loss, gradient_norm
        self.num_batches, self.most = num_batches, most


class ConnectionLost(EnvironmentProblem):
    """Another rank is gone: its own end explains this one, and its exit code is the job's."""

    exit_code = EXIT_NO


class OutOfMemory(EnvironmentProblem):
    """A run needs more memory than its device has."""


class DataError(ValueError):
    """The data is missing, damaged, or does not belong to this run."""

    exit_code = EXIT_DATA


LMTRAIN_ERRORS = (ConfigurationError, EnvironmentProblem, DataError)


def retold(problem: ConfigurationError | EnvironmentProblem | DataError, line: str) -> Exception:
    """Return an error of a problem's kind in another line; a kind's subclasses may be made of more than that."""
    return next(kind for kind in type(problem).__mro__ if kind in LMTRAIN_ERRORS)(line)


def wrong(key: str, rule: str, got: object, instead: str = "") -> ConfigurationError:
    """Return the refusal `KEY: must be RULE, got VALUE.`, with what to type `instead` where that is known."""
    fix = f" Did you mean {instead}?" if instead else ""
    return ConfigurationError(f"{key}: must be {rule}, got {'null' if got is None else got}.{fix}")


LEAST_PART = 4  # characters of a part of a name that stands for it


def suggest(word: str, candidates: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest candidate, or an empty string when none is near."""
    return did_you_mean(nearest(word, candidates))


def nearest(word: str, candidates: Iterable[str]) -> list[str]:
    """Return the candidate nearest to a word, or else the first that has the word as a part; an empty list for none."""
    names = list(candidates)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near or len(word) < LEAST_PART:
        return near
    return [name for name in names if word.lower() in name.lower()][:1]


def suggest_path(path: Path) -> str:
    """Return " Did you mean 'folder/x'?" for the nearest name in a mistyped path's folder."""
    try:
        names = [other.name for other in path.parent.iterdir()]
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return did_you_mean([str(path.with_name(name)) for name in near])


def did_you_mean(names: Sequence[str]) -> str:
    """Return " Did you mean 'x' or 'y'?", or an empty string for no name."""
    return f" Did you mean {' or '.join(map(repr, names))}?" if names else ""
