"""Optuna's study of a search, in one file of the sweep's folder, owned by one process; a later one continues it.

The journal has no lock of its own: Optuna's lock is a file that a killed process leaves behind, and the sweep's folder
is locked already. An unfinished last line, of a process killed while writing, is cut off before the file is read.

Trial n is drawn with a sampler seeded by (seed, n), so a search continued by another process draws the same values.
"""

import itertools
import threading
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmtrain.missing_package import require_package
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Space, grid_of
from lmtrain.storage.durable import drop_torn_end

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

JOURNAL: Final = "study.journal"
NAME: Final = "sweep"
SEEDS_PER_STUDY: Final = 100_003  # a prime: trials of studies with neighbouring seeds differ


def require_optuna(sampler: str) -> None:
    """Refuse a search without its packages."""
    require_package("hydra/sweeper=optuna", "optuna", *(["cmaes"] if sampler == "cmaes" else []), extra="sweep")


def sampler_of(settings: SearchSettings, *, number: int) -> "BaseSampler":
    """Return Optuna's sampler for a trial's number.

    With several trials at once, TPE counts an unfinished one as bad, so that no two are drawn at one place.
    """
    from optuna import samplers

    seed = (settings.seed * SEEDS_PER_STUDY + number) % 2**32
    if settings.sampler == "tpe":
        return samplers.TPESampler(
            seed=seed, n_startup_trials=settings.warmup_trials, multivariate=True, constant_liar=settings.parallel > 1
        )
    if settings.sampler == "cmaes":
        from optuna.exceptions import ExperimentalWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return samplers.CmaEsSampler(seed=seed, n_startup_trials=1, warn_independent_sampling=False)
    return samplers.RandomSampler(seed=seed)  # a grid's trials are enqueued


def pruner_of(settings: SearchSettings) -> "BasePruner":
    """Return Optuna's pruner; a trial's steps are its validations, from 1."""
    from optuna import pruners

    if settings.pruner == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=settings.halving_factor)
    return pruners.MedianPruner(n_startup_trials=settings.warmup_trials)


@dataclass(kw_only=True)
class SearchStudy:
    """The study of one search; a trial is known by its number, and its values are as in an override."""

    study: "Study"
    space: Space
    settings: SearchSettings
    _trials: "dict[int, Trial]" = field(default_factory=dict, init=False)

    def draw(self) -> tuple[int, dict[str, str]]:
        """Begin a trial, and return its number and its drawn values."""
        number = sum(trial.state.name != "WAITING" for trial in self.study.get_trials(deepcopy=False))
        self.study.sampler = sampler_of(self.settings, number=number)
        return self._begun(self.study.ask({key: each.distribution() for key, each in self.space.items()}))

    def unfinished(self) -> list[tuple[int, dict[str, str]]]:
        """Return the trials that a stopped or killed process began and did not end."""
        import optuna

        running = [each for each in self.study.get_trials(deepcopy=False) if each.state.name == "RUNNING"]
        trials = [
            optuna.trial.Trial(self.study, each._trial_id)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            for each in running
        ]
        return [self._begun(trial) for trial in trials]

    def _begun(self, trial: "Trial") -> tuple[int, dict[str, str]]:
        self._trials[trial.number] = trial
        return trial.number, {key: each.word(trial.params[key]) for key, each in self.space.items()}

    def is_pruned(self, number: int, value: float, *, validation: int) -> bool:
        """Report a trial's validation, from 1, once; return whether the pruner ends the trial."""
        trial = self._trials[number]
        if validation in self.study.trials[number].intermediate_values:
            return False
        trial.report(value, validation)
        return trial.should_prune()

    def end(self, number: int, *, score: float | None = None, is_bad_place: bool = False) -> None:
        """End a trial with its score, or without one; near a bad place a sampler draws fewer trials."""
        import optuna

        if score is not None:
            self.study.tell(number, score)
        else:
            states = optuna.trial.TrialState
            self.study.tell(number, state=states.PRUNED if is_bad_place else states.FAIL)


def open_study(folder: Path, space: Space, settings: SearchSettings) -> SearchStudy:
    """Open the study in a folder, or create it; the trials of a grid are enqueued in order."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder / JOURNAL
    lock: Any = threading.Lock()  # Optuna's base class has no public name
    if path.exists():
        with path.open("r+b") as journal:
            drop_torn_end(journal.fileno())
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path), lock_obj=lock)),
        study_name=NAME,
        direction="minimize",
        sampler=sampler_of(settings, number=0),
        pruner=pruner_of(settings),
        load_if_exists=True,
    )
    if settings.sampler == "grid":
        grid = grid_of(space)
        for values in itertools.product(*grid.values()):
            study.enqueue_trial(dict(zip(grid, values, strict=True)), skip_if_exists=True)
    return SearchStudy(study=study, space=space, settings=settings)
