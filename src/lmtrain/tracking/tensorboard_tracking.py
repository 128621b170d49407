"""Write a run's curves for TensorBoard, into its own folder: `tensorboard --logdir runs` shows all runs."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmtrain.tracking.feeding.curves import curve_points
from lmtrain.tracking.feeding.following import FollowingHandle, WithoutSweeps
from lmtrain.tracking.feeding.tracker_packages import require_package
from lmtrain.tracking.redacting.redaction import redact_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status


class TensorboardTracking(WithoutSweeps):
    """Keep TensorBoard's event files in the run's folder `tensorboard`.

    Raises: EnvironmentProblem without the package.
    """

    def __init__(self) -> None:
        require_package("tensorboard", logger="tensorboard")

    def start(self, run_folder: RunFolder) -> FollowingHandle:
        """Begin the event files anew, with the points of earlier attempts."""
        return FollowingHandle(run_folder, "TensorBoard", lambda: EventFiles(run_folder))


class EventFiles:
    """A run's curves over steps, the main ones over tokens too, and its config as a text."""

    def __init__(self, run_folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter  # torch and tensorboard: seconds

        folder: Path = run_folder.path / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self._writer: Any = SummaryWriter(str(folder))
        attempts = run_folder.attempts()
        config = attempts[-1] / "config.yaml" if attempts else None
        if config is not None and config.exists():
            lines = redact_text(config.read_text()).splitlines()
            self._writer.add_text("config", "\n".join(f"    {line}" for line in lines))  # Markdown: as it stands

    def write(self, points: Sequence[Point]) -> None:
        """Add points and flush them, to be seen."""
        for point in points:
            for value in curve_points(point):
                self._writer.add_scalar(value.key, value.value, value.step, walltime=value.time)
        self._writer.flush()

    def close(self, status: Status) -> None:
        """Write the remaining points."""
        del status
        self._writer.close()
