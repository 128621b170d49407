"""The trackers that a thread feeds: a table of a run's points, TensorBoard, Trackio, and Weights & Biases."""

import csv
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, Final, Literal

from typing_extensions import override

from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import require_package
from lmtrain.storage import foreign_yaml
from lmtrain.storage.durable import open_inside
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.following import Following, SentPoints
from lmtrain.tracking.redaction import redact
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status

FIRST: Final = ("step", "tokens", "time")


class CsvTracking(Following):
    """Keep `metrics.csv` in the run's folder: step, tokens, unix seconds, then a column a metric.

    It grows by rows, and is written again where a metric is new; a step's points share a row.
    """

    name = "metrics.csv"

    @override
    def open(self, run_folder: RunFolder) -> None:
        """Begin the table again, with the points of earlier attempts."""
        self._path = run_folder.path / "metrics.csv"
        self._path.unlink(missing_ok=True)
        self._columns: list[str] = [*FIRST]
        self._rows: list[dict[str, float]] = []
        self._num_written = 0

    @override
    def write(self, points: Sequence[Point]) -> None:
        """Add the rows of whole steps; the newest waits for its other points."""
        for point in points:
            if not self._rows or self._rows[-1]["step"] != point.step:
                self._rows.append({"step": point.step, "tokens": point.tokens})
            self._rows[-1] |= {"time": point.time, **point.metrics}
        self._add(self._rows[:-1])

    @override
    def close(self, status: Status) -> None:
        self._add(self._rows)

    def _add(self, rows: Sequence[Mapping[str, float]]) -> None:
        new = dict.fromkeys(name for row in rows[self._num_written :] for name in row if name not in self._columns)
        self._columns += new
        if new or self._num_written == 0:
            self._num_written = 0
            write_text(self._path, ",".join(self._columns) + "\r\n")
        descriptor = open_inside(self._path.parent, self._path.name, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerows(rows[self._num_written :])
        self._num_written = len(rows)


class TensorboardTracking(Following):
    """Keep TensorBoard's event files in the run's folder `tensorboard`: curves over steps, and the config as a text.

    Raises: EnvironmentProblem without the package.
    """

    name = "TensorBoard"

    def __init__(self) -> None:
        require_package("logger=tensorboard", "tensorboard", extra="tensorboard", instead="logger=csv")

    @override
    def open(self, run_folder: RunFolder) -> None:
        """Begin the event files again, with the points of earlier attempts."""
        from torch.utils.tensorboard import SummaryWriter  # torch and tensorboard: seconds

        folder: Path = run_folder.path / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self._writer: Any = SummaryWriter(str(folder))
        lines = json.dumps(_config(run_folder), indent=2).splitlines()
        self._writer.add_text("config", "\n".join(f"    {line}" for line in lines))  # Markdown: as it stands

    @override
    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.metrics.items():
                self._writer.add_scalar(name, value, point.step, walltime=point.time)
        self._writer.flush()  # to be seen

    @override
    def close(self, status: Status) -> None:
        self._writer.close()


class ServiceTracking(Following):
    """A service to which a point is sent where no attempt sent it before; infinite values and NaN are left out.

    `open` sets the service's `run` and the points that it has been `sent`.
    """

    run: Any
    sent: SentPoints

    def log(self, point: Point, values: dict[str, float]) -> None:
        """Send some values of a point."""
        raise NotImplementedError

    @override
    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            missing = {key: value for key, value in point.metrics.items() if self.sent.take(key, point.step)}
            if finite := {key: value for key, value in missing.items() if math.isfinite(value)}:
                self.log(point, {"tokens": point.tokens, **finite})
        self.sent.keep()


PLACE: Final = "TRACKIO_DIR"  # read by the package when it is imported


class TrackioTracking(ServiceTracking):
    """Track runs in Trackio's own folder, `trackio` next to the runs; the variable TRACKIO_DIR names another.

    Raises: EnvironmentProblem without the package.
    """

    name = "Trackio"

    def __init__(self, *, project: str = "lmtrain") -> None:
        self.project = project
        require_package("logger=trackio", "trackio", extra="trackio", instead="logger=csv")

    @override
    def start(self, run_folder: RunFolder) -> None:
        os.environ.setdefault(PLACE, str(run_folder.root.absolute() / "trackio"))
        super().start(run_folder)

    @override
    def open(self, run_folder: RunFolder) -> None:
        import trackio  # pyright: ignore[reportMissingImports]  not in the lock

        name = str(run_folder.path.relative_to(run_folder.root))
        store = f"{os.environ.get(PLACE)} {self.project} {name}"
        self.sent = SentPoints(run_folder.path / "trackio_state.json", store=store)
        self.run = trackio.init(
            project=self.project,
            name=name,
            group=run_folder.read_identity().get("sweep"),
            config=_config(run_folder),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    @override
    def log(self, point: Point, values: dict[str, float]) -> None:
        self.run.log(values, step=point.step)

    @override
    def close(self, status: Status) -> None:
        self.run.finish()


Mode = Literal["online", "offline"]
HOST: Final = "api.wandb.ai"


class WandbTracking(ServiceTracking):
    """Track runs in Weights & Biases; `entity` None is the account's own, `offline` waits for `wandb sync`.

    Raises: EnvironmentProblem without the package, or online without a key.
    """

    name = "W&B"

    def __init__(self, *, project: str = "lmtrain", entity: str | None = None, mode: Mode = "online") -> None:
        self.project, self.entity = project, entity
        self.mode: Mode = mode
        require_package("logger=wandb", "wandb", extra="wandb", instead="logger=csv")
        if mode == "online" and not has_key():
            raise EnvironmentProblem(
                "logger=wandb has no key for api.wandb.ai: type `wandb login` once, set WANDB_API_KEY, "
                "or use logger.mode=offline."
            )

    @override
    def open(self, run_folder: RunFolder) -> None:
        import wandb  # seconds

        identity = str(run_folder.read_identity().get("run", run_folder.path))
        config = _config(run_folder)
        self.sent = SentPoints(run_folder.path / "wandb_state.json", store=f"{self.entity}/{self.project}")
        self.run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            tags=config.get("run", {}).get("tags"),
            notes=config.get("run", {}).get("notes"),
            id=hashlib.sha256(identity.encode()).hexdigest()[:16],
            name=run_folder.name,
            resume="allow" if self.mode == "online" else None,  # offline it is said to be ignored
            dir=str(run_folder.path),
            config=config,
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_meta=True),
        )
        self.run.define_metric("*", step_metric="step")

    @override
    def log(self, point: Point, values: dict[str, float]) -> None:
        self.run.log({"step": point.step, **values})

    @override
    def close(self, status: Status) -> None:
        """Give the run its end; a clean stop, to go on with the same command, is not a failure."""
        self.run.finish(exit_code=0 if status.is_clean_stop else status.exit_code or 0)


def has_key() -> bool:
    """Return whether this account can log in: by its environment or its .netrc, as wandb itself looks."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", HOST).partition("://")[2] or HOST
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host.strip("/")) is not None
    except (OSError, NetrcParseError):
        return False


def _config(run_folder: RunFolder) -> dict[str, Any]:
    """Return the newest attempt's config without secrets, empty without one."""
    path = (run_folder.attempts() or [run_folder.path])[-1] / "config.yaml"
    return redact(foreign_yaml.read(path) or {}) if path.exists() else {}
