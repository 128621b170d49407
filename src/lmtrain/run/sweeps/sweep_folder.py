"""The folder of a search, runs/NAME/: sweep.json, Optuna's journal, the trials' runs, and their jobs and output.

One process at a time writes it. Another start of the same command goes on with it.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.compose.search_words import SearchWords
from lmtrain.run.run_config import RunConfig
from lmtrain.run.stored_runs.job import EXECUTION_KEYS, flatten, short_hash
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.study import JOURNAL
from lmtrain.tracking.redaction import redact, redact_override
from lmtrain.tracking.run_folder import run_path
from lmtrain.tracking.sweep_file import NAME, SweepFile, held_sweep, is_under_way, read_sweep

JOBS: Final = "jobs"
# Settings that may differ between two starts of one search; the others make its trials comparable.
FREE_SETTINGS: Final = frozenset({"trials", "parallel", "launcher", "slurm", "max_hours", "max_usd", "seed"})
FREE_GROUPS: Final = frozenset({"run", "resume", "logger", "trainer", "cluster"})
MOST_NAMED: Final = 4  # differences of a refusal


@dataclass(frozen=True)
class SweepFolder:
    """The paths of a search."""

    path: Path

    @property
    def jobs(self) -> Path:
        """Return the folder of the trials' jobs and output."""
        return self.path / JOBS

    def job_path(self, run: str) -> Path:
        """Return the file of a run's job."""
        return self.jobs / f"{run}.json"

    @contextmanager
    def held(self) -> Generator[None]:
        """Make the folder and hold it for this process alone.

        Raises:
            EnvironmentProblem: It cannot be written, or another process has it.
        """
        with held_sweep(self.path):
            self.jobs.mkdir(exist_ok=True)
            yield

    def begin(self, new: SweepFile, *, under_metric: Callable[[str], str]) -> SweepFile:
        """Return the sweep of this folder: as it stands there, else the new one, whose file is there before its study.

        Another metric is that of the same sweep while no trial has a score: `under_metric` is the new one's
        fingerprint under a metric.

        Raises:
            ConfigurationError: The folder holds another sweep.
            DataError: It is of another version.
        """
        found = read_sweep(self.path)
        if found is None:
            if (self.path / JOURNAL).exists():
                raise ConfigurationError(
                    f"{self.path} has a study of trials and no {NAME}; give the sweep another run.name."
                )
            new.save(self.path)
            return new
        if not found.has_scores and found.fingerprint == under_metric(found.metric):
            found.metric, found.fingerprint = new.metric, new.fingerprint
        if found.fingerprint != new.fingerprint:
            raise ConfigurationError(
                f"{self.path} is another sweep ({_differences(found, new)}); give this one another run.name, or type "
                f"that sweep's command to go on with it: {found.command}"
            )
        found.settings, found.command = new.settings, new.command
        return found


def sweep_folder(words: SearchWords, config: RunConfig) -> SweepFolder:
    """Return the folder: as run.name says, else after the sweep's own words.

    A sweep under a metric that no trial logged goes on where it is, under another one.

    Raises:
        ConfigurationError: The name cannot be one.
    """
    name = config.run.name or f"sweep-{short_hash(sorted(_telling(words.arguments.overrides)))}"
    root = Path(config.run.root).absolute()
    path = run_path(root, name)
    unjudged = None if config.run.name or path.exists() else _unjudged(root, words, config)
    return SweepFolder(unjudged or path)


def _unjudged(root: Path, words: SearchWords, config: RunConfig) -> Path | None:
    """Return the unnamed sweep of another metric alone, none of whose trials has a score, and not under way."""
    for file in sorted(root.glob(f"sweep-*/{NAME}")):
        with suppress(DataError):
            found = read_sweep(file.parent)
            if found is None or found.has_scores or is_under_way(file.parent):
                continue
            if found.fingerprint == fingerprint_under(words, config, found.metric):
                return file.parent
    return None


def new_sweep(words: SearchWords, config: RunConfig, *, name: str, command: str) -> SweepFile:
    """Return the record of a sweep before its beginning."""
    return SweepFile(
        name=name,
        kind="search",
        metric=words.settings.metric,
        fingerprint=fingerprint(words, config),
        command=command,
        settings=_plain(words.settings),
        space={key: dimension.describe() for key, dimension in words.space.items()},
        shared=_shared_values(words, config),
    )


def fingerprint(words: SearchWords, config: RunConfig) -> str:
    """Return a hash of the causes of comparable trials: the shared config, the space, and the judgement."""
    judged = {name: value for name, value in _plain(words.settings).items() if name not in FREE_SETTINGS}
    space = {key: dimension.describe() for key, dimension in words.space.items()}
    return short_hash([_shared_groups(words, config), judged, space, _words_of_swept(words)])


def fingerprint_under(words: SearchWords, config: RunConfig, metric: str) -> str:
    """Return the fingerprint of a search, was it judged by another metric."""
    return fingerprint(replace(words, settings=replace(words.settings, metric=metric)), config)


def _shared_groups(words: SearchWords, config: RunConfig) -> dict[str, Any]:
    """Return the config of all trials alike; a swept group's other values follow from its choice."""
    swept = _swept_groups(words)
    return {name: value for name, value in config.values.items() if name not in FREE_GROUPS | swept}


def _words_of_swept(words: SearchWords) -> list[str]:
    """Return the words of all trials within the swept groups."""
    swept = _swept_groups(words)
    return sorted(word for word in words.fixed if word.lstrip("+~").partition(".")[0] in swept)


def _swept_groups(words: SearchWords) -> set[str]:
    return {key.partition(".")[0] for key in words.space}


def _shared_values(words: SearchWords, config: RunConfig) -> dict[str, Any]:
    """Return the values of all trials alike, by dotted keys and without secrets."""
    groups = redact(_shared_groups(words, config))
    values = {key: leaf for name, value in groups.items() for key, leaf in flatten(value, name).items()}
    pairs = (redact_override(word).lstrip("+").partition("=") for word in _words_of_swept(words))
    return {**values, **{key: value for key, _, value in pairs}}


def _plain(settings: SearchSettings) -> dict[str, Any]:
    return asdict(settings)


def _telling(words: Sequence[str]) -> list[str]:
    free = {f"sweep.{name}" for name in FREE_SETTINGS}
    keys = {word: word.lstrip("+").partition("=")[0] for word in words}
    return [word for word in words if keys[word] not in free and not keys[word].startswith(EXECUTION_KEYS)]


def _differences(found: SweepFile, new: SweepFile) -> str:
    """Name the first differences of two sweeps."""
    kept = [{f"sweep.{k}": v for k, v in each.settings.items() if k not in FREE_SETTINGS} for each in (found, new)]
    pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]]
    pairs = [(found.space, new.space), (kept[0], kept[1]), (found.shared, new.shared)]
    named = [
        f"{key}={_shown(old, key)} and here {_shown(now, key)}"
        for old, now in pairs
        for key in dict.fromkeys([*old, *now])
        if _shown(old, key) != _shown(now, key)
    ]
    more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return "; ".join([*named[:MOST_NAMED], *more]) or "of another config"


def _shown(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key, "none")
    return "null" if value is None else str(value)
