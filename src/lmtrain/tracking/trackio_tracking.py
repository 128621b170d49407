"""Keep a run's points for Trackio, a local dashboard without an account: `trackio show --project lmtrain`."""

import math
import os
from collections.abc import Sequence
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.tracking import atomic_files
from lmtrain.tracking.feeding.following import FollowingHandle, WithoutSweeps
from lmtrain.tracking.feeding.sent_points import SentPoints
from lmtrain.tracking.feeding.tracker_packages import require_package
from lmtrain.tracking.redacting.redaction import redact
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status

STATE: Final = "trackio_state.json"
PLACE: Final = "TRACKIO_DIR"  # read by the package when it is imported


class TrackioTracking(WithoutSweeps):
    """Track runs in Trackio's own folder, `trackio` beside the runs; the variable TRACKIO_DIR names another.

    Raises: EnvironmentProblem without the package.
    """

    def __init__(self, *, project: str = "lmtrain") -> None:
        if not project:
            raise ConfigurationError("logger.project='' is empty; the default is lmtrain.")
        require_package("trackio", logger="trackio")
        self.project = project

    def start(self, run_folder: RunFolder) -> FollowingHandle:
        """Go on with the run of this folder, or begin it."""
        os.environ.setdefault(PLACE, str(run_folder.root.absolute() / "trackio"))
        return FollowingHandle(run_folder, "Trackio", lambda: TrackioRun(run_folder, self.project))


class TrackioRun:
    """A run there; a point is sent where no attempt sent it before."""

    def __init__(self, run_folder: RunFolder, project: str) -> None:
        import trackio  # pyright: ignore[reportMissingImports]  not in the lock

        name = str(run_folder.path.relative_to(run_folder.root))
        store = f"{os.environ.get(PLACE)} {project} {name}"
        self._sent = SentPoints(run_folder.path / STATE, store=store)
        attempts = run_folder.attempts()
        job = atomic_files.read_json(attempts[-1] / "job.json") if attempts else {}
        self._run: Any = trackio.init(
            project=project,
            name=name,
            group=run_folder.read_identity().get("sweep"),
            config=redact(job.get("config", {})),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, points: Sequence[Point]) -> None:
        """Send the points missing there; infinite values and NaN are left out."""
        for point in points:
            finite = {key: value for key, value in self._sent.take_missing(point).items() if math.isfinite(value)}
            if finite:
                self._run.log({"tokens": point.tokens, **finite}, step=point.step)
        self._sent.keep()

    def close(self, status: Status) -> None:
        """Write the remaining points."""
        del status
        self._run.finish()
