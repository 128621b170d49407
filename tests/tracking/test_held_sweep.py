import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking import sweep_file as module
from lmtrain.tracking.run_folder import ask_to_stop, is_asked_to_stop
from lmtrain.tracking.sweep_file import held_sweep, is_under_way

HOLDER = """
import sys
from pathlib import Path
from lmtrain.tracking.sweep_file import held_sweep
with held_sweep(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_sweep_is_one_process_s_at_a_time_and_under_way_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    assert not is_under_way(folder)
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_under_way(folder)
        monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
        with pytest.raises(
            EnvironmentProblem, match=rf"is a sweep under way in process {holder.pid} on .*lmtrain stop"
        ):
            held_sweep(folder).__enter__()
        holder.communicate()
    assert not is_under_way(folder)


def test_a_run_s_folder_is_refused_and_an_older_wish_is_forgotten(tmp_path: Path) -> None:
    ask_to_stop(tmp_path)
    with held_sweep(tmp_path):
        assert not is_asked_to_stop(tmp_path)
    (tmp_path / "status.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"is a run's folder; give the sweep another run\.name"):
        held_sweep(tmp_path).__enter__()
