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
