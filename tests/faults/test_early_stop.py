import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests import tiny


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_compiles_is_stopped_at_once_with_its_status_true(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    words = tiny.command("compile=model", "run.name=a", "budget.steps=400", "callbacks.validation=null")
    process = subprocess.Popen(
        [word for word in words if word != "compile=none"],
        cwd=tmp_path,
        env=tiny.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "first step, and compilation" in line:
            process.send_signal(number)
            break
    _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert f"{number.name}: stopped before the first step" in said
    assert "Traceback" not in said
    assert json.loads((tmp_path / "runs/a/status.json").read_text())["status"] == "KILLED"
    assert not list((tmp_path / "runs/a").glob("checkpoints/step_*"))


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("devices", [1, 2])
def test_a_second_ctrl_c_ends_at_once_with_a_line_and_the_status_true(devices: int, tmp_path: Path) -> None:
    twice = "+callbacks.twice={_target_: tests.faults.kill_at.InterruptTwiceAt, step: 3}"
    words = ["run.name=a", "budget.steps=400", f"trainer.devices={devices}", "--allow-target", "tests.", twice]
    start = tiny.train if devices == 1 else tiny.start  # by our launcher
    stopped = start(tmp_path, *words, "callbacks.checkpoint.every_steps=2", "callbacks.checkpoint.every_seconds=null")
    assert stopped.returncode == 130, stopped.stderr
    assert "SIGINT again: stopped at once" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    status = json.loads((tmp_path / "runs/a/status.json").read_text())
    assert (status["status"], status["exit_code"], status["step"]) == ("KILLED", 130, 3)
    saved = [path.name for path in (tmp_path / "runs/a").glob("checkpoints/step_*")]
    assert saved == ["step_00000002"], "the step that was given up is not saved"
