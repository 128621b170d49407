"""Send a run's points to Weights & Biases, or keep them for `wandb sync`."""

import hashlib
import math
import os
from collections.abc import Sequence
from netrc import NetrcParseError, netrc
from typing import TYPE_CHECKING, Any, Final, Literal

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage import foreign_yaml
from lmtrain.tracking.feeding.following import FollowingHandle, WithoutSweeps
from lmtrain.tracking.feeding.sent_points import SentPoints
from lmtrain.tracking.feeding.tracker_packages import require_package
from lmtrain.tracking.redacting.redaction import redact
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status

if TYPE_CHECKING:
    from wandb import Run

Mode = Literal["online", "offline"]
HOST: Final = "api.wandb.ai"


class WandbTracking(WithoutSweeps):
    """Track runs in Weights & Biases; `entity` None is the account's own, `offline` waits for `wandb sync`.

    Raises: EnvironmentProblem without the package, or online without a key.
    """

    def __init__(self, *, project: str = "lmtrain", entity: str | None = None, mode: Mode = "online") -> None:
        if not project:
            raise ConfigurationError("logger.project='' is empty; the default is lmtrain.")
        require_package("wandb", logger="wandb")
        if mode == "online" and not has_key():
            raise EnvironmentProblem(
                "logger=wandb has no key for api.wandb.ai: type `wandb login` once, set WANDB_API_KEY, "
                "or use logger.mode=offline."
            )
        self.project, self.entity, self.mode = project, entity, mode

    def start(self, run_folder: RunFolder) -> FollowingHandle:
        """Go on with the run of this folder, or begin it."""
        settings = {"project": self.project, "entity": self.entity, "mode": self.mode}
        return FollowingHandle(run_folder, "W&B", lambda: WandbRun(run_folder, settings))


def has_key() -> bool:
    """Return whether this account can log in: by its environment or its .netrc, as wandb itself looks."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", HOST).partition("://")[2] or HOST
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host.strip("/")) is not None
    except (OSError, NetrcParseError):
        return False


class WandbRun:
    """A run there; a point is sent where no attempt sent it before."""

    def __init__(self, run_folder: RunFolder, settings: dict[str, Any]) -> None:
        import wandb  # seconds

        identity = str(run_folder.read_identity().get("run", run_folder.path))
        store = f"{settings['entity']}/{settings['project']}"
        self._sent = SentPoints(run_folder.path / "wandb_state.json", store=store)
        self._run: Run = wandb.init(
            **settings,
            id=hashlib.sha256(identity.encode()).hexdigest()[:16],
            name=run_folder.name,
            resume="allow" if settings["mode"] == "online" else None,  # offline it is said to be ignored
            dir=str(run_folder.path),
            config=_config(run_folder),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_meta=True),
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, points: Sequence[Point]) -> None:
        """Send the points missing there."""
        for point in points:
            if fresh := self._sent.take_missing(point):
                finite = {key: value if math.isfinite(value) else str(value) for key, value in fresh.items()}
                self._run.log({"step": point.step, "tokens": point.tokens, **finite})
        self._sent.keep()

    def close(self, status: Status) -> None:
        """Give the run its end; a clean stop, to go on with the same command, is no failure."""
        self._run.finish(exit_code=0 if status.is_clean_stop else status.exit_code or 0)


def _config(run_folder: RunFolder) -> dict[str, Any]:
    attempts = run_folder.attempts()
    path = attempts[-1] / "config.yaml" if attempts else run_folder.path / "config.yaml"
    return redact(foreign_yaml.read(path) or {}) if path.exists() else {}
