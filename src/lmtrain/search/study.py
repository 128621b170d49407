"""Optuna's study of a search in one file of the sweep's folder, owned by one process; a new one goes on with it.

The journal has no lock of its own: Optuna's is a file left behind by a killed process, and the sweep's folder is
locked already. An unfinished last line, of a process killed while writing, is cut off before the file is read.
"""

import itertools
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import install_command
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Space, grid_of

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler

JOURNAL: Final = "study.journal"
NAME: Final = "sweep"


class HeldElsewhere:
    """The lock of a journal in a folder locked for this process."""

    def acquire(self) -> bool:
        """Hold it already."""
        return True

    def release(self) -> None:
        """Hold it until the folder is free."""


def open_study(folder: Path, settings: SearchSettings) -> "Study":
    """Open the study in a folder, a new one where there is none.

    Raises:
        EnvironmentProblem: Optuna is not installed.
    """
    require_optuna(settings.sampler)
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder / JOURNAL
    held: Any = HeldElsewhere()  # Optuna names its base class nowhere in public
    cut_unfinished_line(path)
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path), lock_obj=held)),
        study_name=NAME,
        direction="minimize",
        sampler=sampler_of(settings, num_drawn=path.stat().st_size if path.exists() else 0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=settings.warmup_trials),
        load_if_exists=True,
    )


def require_optuna(sampler: str) -> None:
    """Refuse a search without its packages.

    Raises:
        EnvironmentProblem: One is missing.
    """
    for package in ("optuna", *(["cmaes"] if sampler == "cmaes" else [])):
        if find_spec(package) is None:
            command = install_command("sweep", package)
            raise EnvironmentProblem(f"hydra/sweeper=optuna needs the package {package}: {command}")


def sampler_of(settings: SearchSettings, *, num_drawn: int) -> "BaseSampler":
    """Return Optuna's sampler; a resumed one draws other numbers than from its start, by `num_drawn`.

    Trials side by side: an unfinished one counts as bad, lest two be drawn at one place.
    """
    from optuna import samplers

    seed = settings.seed + num_drawn
    if settings.sampler == "tpe":
        return samplers.TPESampler(
            seed=seed, n_startup_trials=settings.warmup_trials, multivariate=True, constant_liar=settings.parallel > 1
        )
    if settings.sampler == "cmaes":
        from optuna.exceptions import ExperimentalWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return samplers.CmaEsSampler(seed=seed, n_startup_trials=1, warn_independent_sampling=False)
    return samplers.RandomSampler(seed=seed)  # of a grid all trials are enqueued


def enqueue_grid(study: "Study", space: Space) -> None:
    """Have all combinations of a grid drawn next, in order; those drawn before are left out."""
    grid = grid_of(space)
    for values in itertools.product(*grid.values()):
        study.enqueue_trial(dict(zip(grid, values, strict=True)), skip_if_exists=True)


def draw(study: "Study", space: Space) -> "Trial":
    """Return a new trial with its values drawn."""
    return study.ask({key: dimension.distribution() for key, dimension in space.items()})


def open_trials(study: "Study") -> list["Trial"]:
    """Return the trials begun and not ended, by a stopped or killed process."""
    import optuna

    waiting = [each for each in study.get_trials(deepcopy=False) if each.state == optuna.trial.TrialState.RUNNING]
    return [optuna.trial.Trial(study, each._trial_id) for each in waiting]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def tell_score(study: "Study", number: int, score: float) -> None:
    """Give a trial's score."""
    study.tell(number, score)


def tell_bad(study: "Study", number: int, *, is_place: bool) -> None:
    """End a trial without a score; `is_place`: its values are to blame, and a sampler draws fewer near them."""
    import optuna

    states = optuna.trial.TrialState
    study.tell(number, state=states.PRUNED if is_place else states.FAIL)


def cut_unfinished_line(path: Path) -> None:
    """Cut a file after its last whole line."""
    if not path.exists():
        return
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole != len(text):
        with path.open("r+b") as file:
            file.truncate(whole)
