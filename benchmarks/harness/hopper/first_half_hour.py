"""The first half hour on a GPU, part after part in the order of what is worth most, within a number of minutes.

Each stage is a call of the harness in a process of its own, ended when the minutes of its block are over; its rows are
in the report as they come. A later call over the same folder leaves out each stage that gave up no row.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.hopper.report_file import read, write
from benchmarks.harness.hopper.user_runs import ROOT, environment

HARNESS: Final = "benchmarks.questions.hopper"
MINUTES: Final = 30.0
LEAST_SECONDS: Final = 5.0  # of a stage: in less no process of it says anything
StageRunner = Callable[[Sequence[str], float], str]  # words and seconds; how it ended


@dataclass(frozen=True)
class Stage:
    """Words of the harness, and the minute of the half hour at which they end at the latest."""

    words: tuple[str, ...]
    until: float

    @property
    def name(self) -> str:
        """Return the words as one would type them."""
        return " ".join(word if " " not in word else f"'{word}'" for word in self.words)


def _stage(until: float, part: str, *, cases: Sequence[str] = (), variants: Sequence[str] = ()) -> Stage:
    chosen = [*(["--cases", *cases] if cases else []), *(["--variants", *variants] if variants else [])]
    return Stage(("--only", part, *chosen), until)


ONE_B, GPT2, NANO = "llama_3_2_1b", "gpt2_124m", "nano_d24"
FIRST_HALF_HOUR: Final = (
    _stage(3, "versions"),
    _stage(3, "gpu_tests"),
    _stage(12, "speed", cases=[ONE_B], variants=["bf16"]),
    _stage(12, "speed", cases=[GPT2], variants=["bf16"]),
    _stage(12, "speed", cases=[ONE_B], variants=["fp8"]),
    _stage(12, "profile", cases=[ONE_B], variants=["after"]),
    _stage(24, "speed", cases=[ONE_B], variants=["whole_step"]),
    _stage(24, "speed", cases=[ONE_B], variants=["fp8_head"]),
    _stage(24, "speed", cases=[NANO], variants=["bf16"]),
    _stage(29, "overhead", cases=[ONE_B]),
    _stage(29, "checkpoint"),
    _stage(29, "start"),
    _stage(29, "memory", cases=[ONE_B]),
    _stage(30, "speed", cases=[GPT2, NANO], variants=["whole_step"]),
    _stage(30, "peers"),
)


def run(
    path: Path,
    *,
    minutes: float,
    words: Sequence[str],
    stages: Sequence[Stage],
    tell: Callable[[str], None],
    here: StageRunner | None = None,
) -> dict[str, Any]:
    """Run the stages into the report at `path` and return it; `words` go to every one.

    Blocks end in proportion to `minutes`; the time that one leaves is the next one's. A toy's stages run `here`, since
    starts of processes would be most of them, and until the minutes of all are over.
    """
    run_stage = here or _run_stage
    began = time.monotonic()
    for stage in stages:
        report = read(path)
        plan: list[dict[str, Any]] = report.setdefault("plan", [])
        if any(held["stage"] == stage.name and held["outcome"] == "done" for held in plan):
            tell(f"{stage.name}: done before")
            continue
        started = time.monotonic()
        left = began + 60 * minutes * (1.0 if here else stage.until / MINUTES) - started
        outcome = run_stage([*stage.words, *words], left) if left > LEAST_SECONDS else "no time was left"
        report = read(path)
        plan = [held for held in report.get("plan", []) if held["stage"] != stage.name]
        seconds = time.monotonic() - started
        report["plan"] = [*plan, {"stage": stage.name, "seconds": round(seconds, 1), "outcome": outcome}]
        write(report, path)
        tell(f"{stage.name}: {outcome}, {seconds:.0f} s")
    return read(path)


def _run_stage(words: Sequence[str], seconds: float) -> str:
    """Run the harness with these words; return how it ended."""
    command = [sys.executable, "-m", HARNESS, *words]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
        start_new_session=True,  # all of its processes are ended together
    ) as process:
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"cut off after {seconds:.0f} s"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        return f"exit code {process.returncode}: {(said.strip().splitlines() or ['nothing said'])[-1][:200]}"
    return "done"


PLANS: Final = {"first_half_hour": FIRST_HALF_HOUR}
