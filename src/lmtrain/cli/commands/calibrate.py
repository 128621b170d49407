"""Take some real steps of a config in a throwaway run, and keep how long one took for its later plans."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.measured import Calibration
from lmtrain.accounting.observed.time_accounts import STEP_KINDS, StopwatchReading
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.accounting.training_plan.speed import Speed
from lmtrain.child_process import python_command, python_environment
from lmtrain.doctor.finding import Finding
from lmtrain.errors import EnvironmentProblem
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.run.compose.paths import without
from lmtrain.run.planning.calibration import calibration_key, measurements_of
from lmtrain.run.planning.plan import plan_of
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.machine import write_measurements

READ_EVERY_STEPS: Final = 5
WARM_STEPS: Final = 10
FEWEST_STEPS: Final = 30
MOST_STEPS: Final = 2000
TIMED_SECONDS: Final = 10.0
REPLACED: Final = ("budget", "run.root", "run.name", "run.log_every_steps", "resume", "logger")
SECONDS: Final = 1800
RUN: Final = (
    *("budget=steps", "run.name=calibration", "resume=never", "logger=none"),
    *(f"callbacks.{name}=null" for name in ("validation", "text_samples", "checkpoint")),
)


def calibrate(config: RunConfig, overrides: list[str]) -> Finding:
    """Train about ten seconds after the warm steps, keep the time of a step, and report it.

    Raises:
        EnvironmentProblem: The steps failed; the message has the end of their output.
    """
    planned, _ = plan_of(config)
    num_steps = steps_worth_timing(planned.speed)
    expected = f" of about {format_quantity(planned.speed.step_seconds, 'seconds')}" if planned.speed else ""
    sys.stderr.write(f"calibration: trains {WARM_STEPS + num_steps} steps{expected} in a separate run ...\n")
    found = _measured(config, overrides, num_steps=num_steps)
    measured = measurements_of(config)
    kept = measured.with_calibration(calibration_key(config, planned.batch, measured), found)
    write_measurements(Path(config.run.cache), kept)
    told = f"a step takes {found.step_seconds:.4g} s, over {format_count(found.num_steps, 'step')}"
    told += f", after a start of {found.setup_seconds:.3g} s; kept for `lmtrain plan`"
    return Finding(name="calibration", state="ok", found=told)


def _measured(config: RunConfig, overrides: list[str], *, num_steps: int) -> Calibration:
    """Train the steps in a separate run, and return the time of one."""
    with tempfile.TemporaryDirectory(prefix="lmtrain-calibrate-") as folder:
        words = [
            *without(overrides, REPLACED),
            *RUN,
            f"budget.steps={WARM_STEPS + num_steps}",
            f"run.root={folder}",
            f"run.cache={config.run.cache}",
            f"run.log_every_steps={READ_EVERY_STEPS}",
        ]
        # As a typed run: in a process of its own, with this one's threads left to it.
        command = python_command("-m", "lmtrain.cli", "train", *words)
        ended = subprocess.run(
            command, env=python_environment(), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if ended.returncode != 0:
            tail = " ".join(ended.stderr.split()[-60:])
            raise EnvironmentProblem(f"calibrate: the steps failed with exit code {ended.returncode}: {tail}")
        (attempt,) = read_attempts(Path(folder) / "calibration")
    return calibration_from(attempt.readings)


def steps_worth_timing(speed: Speed | None) -> int:
    """Return how many steps take about ten seconds: fewer say little where the machine is shared."""
    expected = speed.step_seconds if speed else TIMED_SECONDS
    return min(MOST_STEPS, max(FEWEST_STEPS, round(TIMED_SECONDS / expected)))


def calibration_from(readings: tuple[StopwatchReading, ...]) -> Calibration:
    """Return the time of a step between the first reading after the warm steps and the last one, and of the start.

    Raises:
        EnvironmentProblem: Fewer than two such readings.
    """
    warm = [reading for reading in readings if reading.step >= WARM_STEPS]
    if not warm or warm[-1].step == warm[0].step:
        raise EnvironmentProblem("calibrate: the run kept no accounts; leave callbacks.ledger switched on.")
    first, last = warm[0], warm[-1]
    seconds = sum(last.seconds.get(kind, 0.0) - first.seconds.get(kind, 0.0) for kind in STEP_KINDS)
    num_steps = last.step - first.step
    setup_seconds = last.seconds.get("setup", 0.0)
    return Calibration(step_seconds=seconds / num_steps, num_steps=num_steps, setup_seconds=setup_seconds)
