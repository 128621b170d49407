"""The layout of a run on disk, runs/<name>/: one folder, one writer at a time, a history of attempts.

The layout:
    config.yaml     of the newest accepted start    metrics.jsonl   the curves (run_log)
    plan.json       the run's plan                  status.json     RUNNING, FINISHED, ...
    run.json        the run's identity              checkpoints/    of a step each
    events/         each rank's activities in time
    attempts/<n>/   config, overrides, git state, versions, set-up time, data, rank logs
"""

import contextlib
import shutil
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path, PurePath

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage.durable import fsync, links_in
from lmtrain.tracking import atomic_files
from lmtrain.tracking.atomic_files import file_lock
from lmtrain.tracking.git_checkout import describe_git
from lmtrain.tracking.machine import describe_environment, describe_versions
from lmtrain.tracking.redaction import redact_override, redact_text

ACCEPTED = "accepted_attempt"  # in run.json: the last one that began to train
OF_OLDER = ".before-"  # in the folder's name of a run that began anew under its name
PROFILES = "profile"  # a run's folder of profiles
DATA_OF_ATTEMPT = "data.json"  # an attempt's: the folder of its prepared data, the fingerprint, a mixture's phases
PHASES = "phases"  # there: the first position and the weights of each


class RunFolder:
    """The paths of one run; nothing is touched before create. root is where its store and its siblings live."""

    def __init__(self, path: Path, *, root: Path | None = None) -> None:
        self.path = path.absolute()
        self.root = self.path.parent if root is None else root.absolute()
        self.config_path = self.path / "config.yaml"
        self.plan_path = self.path / "plan.json"
        self.status_path = self.path / "status.json"
        self.identity_path = self.path / "run.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoints_path = self.path / "checkpoints"

    @property
    def name(self) -> str:
        """The run's name, relative to its root where it lies in it."""
        inside = self.path.is_relative_to(self.root)
        return self.path.relative_to(self.root).as_posix() if inside else self.path.name

    def owns(self, path: Path) -> bool:
        """Return whether a file lies in the folder itself: in somebody else's, a link may lead to any file."""
        return path.resolve().is_relative_to(self.path.resolve())

    def create(self, *, sweep: str | None = None) -> None:
        """Make the folder and give the run its identity, once; sweep names the trial's sweep."""
        self.require_own_files()
        try:
            self.checkpoints_path.mkdir(parents=True, exist_ok=True)
            fsync(self.path.parent)
        except OSError as error:
            raise atomic_files.storage_problem(self.path, error) from error
        new = {"run": uuid.uuid4().hex, "created_at": time.time()}
        identity = {**new, **self.read_identity(), "name": self.name, "root": str(self.root)}
        atomic_files.write_json(self.identity_path, identity if sweep is None else identity | {"sweep": sweep})

    def read_identity(self) -> dict[str, object]:
        """Return run.json, empty before create: run (its id to MLflow), created_at, name, root, sweep, ..."""
        return atomic_files.read_json(self.identity_path)

    def known_root(self) -> Path:
        """Return the root of run.json where the run still lies there under its name, else the folder around it."""
        identity = self.read_identity()
        root = Path(str(identity.get("root", self.root)))
        return root if root / str(identity.get("name")) == self.path else self.root

    def note(self, facts: Mapping[str, object]) -> None:
        """Add facts to run.json; the caller redacts them."""
        atomic_files.write_json(self.identity_path, {**self.read_identity(), **facts})

    def require_own_files(self) -> None:
        """Refuse to write into a folder with symbolic links: in a stranger's run they lead to this person's files.

        W&B's own links, in its folder, are allowed: they are never followed.
        """
        if links := links_in(self.path, besides=("wandb",)):
            raise EnvironmentProblem(
                f"{links[0]} is a symbolic link, and a run writes only into its own folder; remove it, or put the real "
                "file or folder there (run.root chooses another disk)."
            )

    @contextlib.contextmanager
    def lock(self, *, wait_seconds: float = 3.0) -> Generator[None]:
        """Hold the run for this process alone; waits a little, because a killed run needs a moment to be gone."""
        refusal = (
            f"run.name={self.name} is already being trained by process HOLDER; "
            "wait for it, stop it, or choose another name."
        )
        self.require_own_files()
        with file_lock(self.path / ".lock", wait_seconds=wait_seconds, refusal=refusal):
            yield

    def attempts(self) -> list[Path]:
        """Return the folders of all attempts, oldest first."""
        folders = (self.path / "attempts").glob("[0-9]*")
        return sorted((folder for folder in folders if folder.name.isdigit()), key=lambda folder: int(folder.name))

    def accepted_attempt(self) -> Path | None:
        """Return the folder of the newest accepted attempt, else of the newest; None if there is none.

        No checkpoint has the settings of one killed before that.
        """
        accepted, attempts = self.read_identity().get(ACCEPTED), self.attempts()
        found = [attempt for attempt in attempts if attempt.name == accepted] or attempts[-1:]
        return found[0] if found else None

    def start_attempt(self, config_text: str, overrides: Sequence[str]) -> Path:
        """Begin the next attempt and return its folder: config, overrides, git state, versions, environment.

        None of them holds a secret. Until it is accepted, nothing else in the run changes.
        """
        forget_stop(self.path)
        config_text = redact_text(config_text)
        attempts = self.attempts()
        folder = self.path / "attempts" / str(int(attempts[-1].name) + 1 if attempts else 1)
        try:
            folder.mkdir(parents=True)
            fsync(folder.parent)
        except OSError as error:
            raise atomic_files.storage_problem(folder, error) from error
        git = describe_git(Path.cwd())
        atomic_files.write_text(folder / "config.yaml", config_text)
        words = "".join(f"{redact_override(word)}\n" for word in overrides)
        atomic_files.write_text(folder / "overrides.txt", words)
        atomic_files.write_json(folder / "git.json", {"commit": git.commit, "branch": git.branch, "dirty": git.dirty})
        atomic_files.write_text(folder / "git.diff", git.diff)
        atomic_files.write_json(folder / "versions.json", describe_versions())
        atomic_files.write_json(folder / "environment.json", describe_environment())
        return folder

    def accept_newest_attempt(self) -> None:
        """Make the newest attempt's config the run's own: nothing refuses it any more."""
        attempts = self.attempts()
        if attempts:
            atomic_files.write_text(self.config_path, (attempts[-1] / "config.yaml").read_text())
            self.note({ACCEPTED: attempts[-1].name})

    def withdraw(self, attempt: Path) -> None:
        """Delete a refused attempt, unless it was accepted before, or one after it, as where a spike ended this one."""
        accepted = str(self.read_identity().get(ACCEPTED))
        if not accepted.isdecimal() or int(accepted) < int(attempt.name):
            shutil.rmtree(attempt, ignore_errors=True)

    def discard_untrained(self) -> None:
        """Delete the folder of a run refused before it began to train: it has no status and no checkpoint."""
        if not self.status_path.exists() and not any(self.checkpoints_path.glob("*")):
            shutil.rmtree(self.path, ignore_errors=True)


def run_path(root: Path, name: str) -> Path:
    """Return the folder of the run called name.

    Raises:
        ConfigurationError: The name would leave root, or holds other characters than letters, digits and ._=,+-.
    """
    parts = name.split("/")
    plain = all(part and part[0] not in ".-" and all(c.isalnum() or c in "._=,+-" for c in part) for part in parts)
    if plain and len(name) <= 200:
        return root / name
    raise ConfigurationError(f"run.name: must be a path of letters, digits and ._=,+- inside {root}, got {name!r}.")


def shown_path(path: Path) -> Path:
    """Return a path as a person types it here: from the working folder, where it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def stored_name(folder: Path) -> str:
    """Return the name of a stored run: its own; the folder's name, if the run was replaced."""
    name = str(atomic_files.read_json(folder / "run.json").get("name", folder.name))
    is_older = folder.name.startswith(f"{PurePath(name).name}{OF_OLDER}")
    return str(PurePath(name).with_name(folder.name)) if is_older else name


NAME = "stop_request"


def ask_to_stop(folder: Path) -> None:
    """Leave the wish."""
    atomic_files.write_text(folder / NAME, "the run ends after its step, with a checkpoint\n")


def is_asked_to_stop(folder: Path) -> bool:
    """Return whether a stop was requested."""
    return (folder / NAME).exists()


def forget_stop(folder: Path) -> None:
    """Take it back: one of an earlier attempt is not meant for a new one."""
    (folder / NAME).unlink(missing_ok=True)
