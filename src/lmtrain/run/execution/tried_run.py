"""Short trainings of a config in processes and folders of their own, which leave only their curves behind."""

import resource
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.paths import without
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.run_log import Point, logged_points

NAME: Final = "tried"
REPLACED: Final = (
    "budget",
    "callbacks",
    "hparams_search",
    "logger",
    "profiler",
    "resume",
    "run.log_every_steps",
    "run.name",
    "run.root",
)
LAST_LINES: Final = 3
PROGRESS_EVERY_SECONDS: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class TriedRun:
    """A short training's end: its exit code (negative: killed by that signal), curves, and last lines of output."""

    exit_code: int
    points: tuple[Point, ...]
    words: str

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Return steps and values of a metric."""
        return [(point.step, point.metrics[metric]) for point in self.points if metric in point.metrics]

    @property
    def is_out_of_memory(self) -> bool:
        """Return whether it lacked memory: by its output, or killed by the system."""
        return "out of memory" in self.words.lower() or "MemoryError" in self.words or self.exit_code in (-9, 137)


def kept(words: Sequence[str], *, also: Sequence[str] = ()) -> list[str]:
    """Return the words of a config without those that a trial replaces."""
    return without(words, (*REPLACED, *also))


def checked_config(words: Sequence[str]) -> RunConfig:
    """Compose the one config to be tried in this process first, to refuse a wrong one at once.

    Raises:
        ConfigurationError: It is wrong, or there are several.
    """
    from lmtrain.run.compose.compose import Choices, for_each_config
    from lmtrain.run.gate import check

    arguments = parse_arguments(words)
    found: list[RunConfig] = []

    def read(values: dict[str, Any], choices: Choices) -> None:
        found.append(check(values, allowed=arguments.allowed_targets, typed=choices.overrides))

    for_each_config(read, arguments, config_name="train")
    if len(found) != 1:
        raise ConfigurationError("this command tries one config; leave -m and --show-config out.")
    return found[0]


def try_run(
    words: Sequence[str],
    *,
    num_steps: int,
    callbacks: Sequence[str],
    most_bytes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> TriedRun:
    """Train for `num_steps` on the ranks of the config; `most_bytes` limits each process (None: no limit).

    `progress` gets a line with the steps done every ten seconds.
    """
    with tempfile.TemporaryDirectory(prefix="lmtrain-tune-") as folder:
        own = [
            "budget=steps",
            f"budget.steps={num_steps}",
            f"callbacks=[{','.join(callbacks)}]",
            "logger=none",
            "resume=never",
            "run.log_every_steps=1",
            f"run.name={NAME}",
            f"run.root={folder}",
        ]
        output, run_folder = Path(folder) / "output.txt", Path(folder) / NAME
        command = python_command("-m", "lmtrain.cli", "train", *words, *own)
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                env=python_environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            if most_bytes is not None and hasattr(resource, "prlimit"):
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (most_bytes, most_bytes))  # its ranks inherit it
            try:
                code = _waited(process, run_folder, num_steps=num_steps, progress=progress)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        return TriedRun(exit_code=code, points=tuple(logged_points(run_folder)), words=_last_lines(output))


def _waited(
    process: "subprocess.Popen[bytes]", folder: Path, *, num_steps: int, progress: Callable[[str], None] | None
) -> int:
    """Wait for a trial's end, and report its steps meanwhile; return its exit code."""
    while True:
        try:
            return process.wait(None if progress is None else PROGRESS_EVERY_SECONDS)
        except subprocess.TimeoutExpired:
            done = max((point.step for point in logged_points(folder)), default=0)
        assert progress is not None
        progress(f"step {done} of {num_steps}" if done else "starting")


def _last_lines(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join([line for line in lines if "out of memory" in line.lower()][:1] + lines[-LAST_LINES:])
