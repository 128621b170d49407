"""Short trainings of a config in processes and folders of their own, which leave nothing behind but their curves."""

import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.quantities import format_quantity
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
TOLD_EVERY_SECONDS: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class TriedRun:
    """A short training's end: its exit code (negative: killed by that signal), curves, and last words."""

    exit_code: int
    points: tuple[Point, ...]
    words: str

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Return steps and values of a metric."""
        return [(point.step, point.metrics[metric]) for point in self.points if metric in point.metrics]

    @property
    def is_out_of_memory(self) -> bool:
        """Tell whether it lacked memory: by its own words, or killed by the system."""
        return "out of memory" in self.words.lower() or "MemoryError" in self.words or self.exit_code in (-9, 137)


def kept(words: Sequence[str], *, also: Sequence[str] = ()) -> list[str]:
    """Return the words of a config without those that a trial replaces."""
    return without(words, (*REPLACED, *also))


def checked_config(words: list[str]) -> RunConfig:
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
        raise ConfigurationError("lmtrain tune takes one config; leave -m and --show-config out.")
    return found[0]


def try_run(
    words: Sequence[str],
    *,
    num_steps: int,
    callbacks: Sequence[str],
    most_bytes: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> TriedRun:
    """Train so many steps on ranks as the words say; `most_bytes` is the limit of each process (None: no limit).

    `tell` gets a line of the steps done, with the time left, every ten seconds.
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
        said, log = Path(folder) / "words.txt", Path(folder) / NAME / "metrics.jsonl"
        with said.open("wb") as file:
            process = subprocess.Popen(
                python_command("-m", "lmtrain.cli", "train", *words, *own),
                env=python_environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            if most_bytes is not None and hasattr(resource, "prlimit"):
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (most_bytes, most_bytes))  # its ranks inherit it
            try:
                code = _waited(process, log, num_steps=num_steps, tell=tell)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        points = tuple(logged_points(log.parent))
        return TriedRun(exit_code=code, points=points, words=_last_words(said))


def _waited(
    process: "subprocess.Popen[bytes]", log: Path, *, num_steps: int, tell: Callable[[str], None] | None
) -> int:
    """Wait for a trial's end, and tell its steps and its time left meanwhile; return its exit code."""
    began: tuple[float, int] | None = None  # the first look with a step: what comes before is no step's time
    while True:
        try:
            return process.wait(None if tell is None else TOLD_EVERY_SECONDS)
        except subprocess.TimeoutExpired:
            done = max((point.step for point in logged_points(log.parent)), default=0)
        assert tell is not None
        now, left = time.monotonic(), ""
        if began is not None and done > began[1]:
            seconds = (num_steps - done) * (now - began[0]) / (done - began[1])
            left = f", {format_quantity(max(1, round(seconds)), 'seconds')} left"
        began = began or ((now, done) if done else None)
        tell(f"step {done} of {num_steps}{left}" if done else "starting")


def _last_words(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join([line for line in lines if "out of memory" in line.lower()][:1] + lines[-LAST_LINES:])
