import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lmtrain.launch.local import launch
from lmtrain.tracking.status import Status, read_status, write_status
from lmtrain.training.stopping import SIGNALS
from tests.launch.slurm_cluster import poll

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}  # as /proc writes it
PARENT = """
import sys
from pathlib import Path
from lmtrain.launch.local import launch
folder = Path(sys.argv[1])
grace = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
code = launch(folder / "config.yaml", num_processes=2, run_folder=folder, entry_point=sys.argv[2], grace_seconds=grace)
assert not {"torch", "lightning", "mlflow"} & sys.modules.keys()
sys.exit(code)
"""


def run(folder, function, num_processes=2, **settings):
    config = folder / "config.yaml"
    name = f"rank_functions:{function}"
    return launch(config, num_processes=num_processes, run_folder=folder, entry_point=name, **settings)


def start_parent(folder, function, *arguments):
    command = [sys.executable, "-c", PARENT, str(folder), f"rank_functions:{function}", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_notes(folder, count=2):
    deadline = time.monotonic() + 60
    while len(list(folder.glob("note*"))) < count:
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)


def processes_of(folder):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes()
            if b"\0-m\0lmtrain.launch." in words and str(folder).encode() in words:
                found.append(int(entry.parent.name))
    return found


def listening_addresses(processes):
    """Return the addresses on which any of some processes accepts TCP connections, as the kernel writes them."""
    names = [str(file.readlink()) for process in processes for file in Path(f"/proc/{process}/fd").iterdir()]
    inodes = {name.removeprefix("socket:[").rstrip("]") for name in names if name.startswith("socket:[")}
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


def test_no_process_of_a_job_listens_beyond_the_loopback_interface(run_folder, monkeypatch):
    up = [one.parent.name for one in Path("/sys/class/net").glob("*/operstate") if one.read_text() == "up\n"]
    for backend in ("GLOO", "NCCL"):  # as on a cluster whose jobs span nodes
        monkeypatch.setenv(f"{backend}_SOCKET_IFNAME", next((name for name in up if name != "lo"), "lo"))
    parent = start_parent(run_folder, "meet_and_wait")
    wait_for_notes(run_folder)
    listening = listening_addresses(processes_of(run_folder))
    parent.terminate()
    parent.communicate(timeout=30)
    assert listening, "gloo's ranks listen for one another"
    assert listening <= LOOPBACK


def test_ranks_succeed_with_clean_variables_and_shared_cores(run_folder, monkeypatch, capfd):
    outer = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "5", "NODE_RANK": "1", "TORCHELASTIC_RUN_ID": "outer"}
    for name, value in {**outer, "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    before = [signal.getsignal(number) for number in SIGNALS]
    assert run(run_folder, "succeed") == 0
    assert [signal.getsignal(number) for number in SIGNALS] == before

    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    for rank in (0, 1):
        text = (run_folder / f"note{rank}").read_text()
        assert text == f"RANK={rank} WORLD_SIZE=2 OMP_NUM_THREADS={threads} NODE_RANK=None"
    out = capfd.readouterr().out
    assert "hello from rank 0: same" in out
    assert "rank 1" not in out
    assert "hello from rank 1: same" in (run_folder / "attempts" / "1" / "rank1.log").read_text()


@pytest.mark.parametrize(
    ("function", "code", "state", "said"),
    [
        ("raise_on_1", 1, "FAILED", "ZeroDivisionError: division by zero"),
        ("data_error_on_1", 4, "FAILED", "data.source=x has no files. Did you mean y?"),
        ("exit_4_on_1", 4, "FAILED", "rank 1 of 2 ended with exit code 4"),
        (
            "killed_on_1",
            137,
            "KILLED",
            "rank 1 of 2 was killed by SIGKILL; the job was stopped.\nits last activity: backward of step 7.",
        ),
    ],
)
def test_failing_rank_ends_the_job_with_its_own_code_and_state(run_folder, capfd, function, code, state, said):
    write_status(run_folder, Status("RUNNING", step=7))
    assert run(run_folder, function) == code
    assert said in capfd.readouterr().err
    assert processes_of(run_folder) == []
    status = read_status(run_folder)
    assert status is not None
    assert (status.status, status.exit_code, status.step) == (state, code, 7)


@pytest.mark.faults
def test_other_ranks_stop_within_a_second_or_so(run_folder):
    parent = start_parent(run_folder, "wait")
    wait_for_notes(run_folder)
    began = time.monotonic()
    os.kill(int((run_folder / "note1").read_text()), signal.SIGKILL)
    parent.communicate(timeout=30)
    assert time.monotonic() - began < 3.0  # 0.1 s to notice, 0 s to stop; the rest is a busy machine's
    assert parent.returncode == 137


@pytest.mark.parametrize("function", ["refused_on_all", "refused_on_all_and_noticed_on_1"])
def test_refusal_on_every_rank_is_told_once(run_folder, capfd, function):
    assert run(run_folder, function) == 2
    assert capfd.readouterr().err.count("seed=x is not a number") == 1


@pytest.mark.faults
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 85)], ids=["TERM", "INT", "USR1"]
)
def test_signal_reaches_the_ranks_and_not_their_workers_and_all_may_save(run_folder, number, code):
    parent = start_parent(run_folder, "save_when_told")
    wait_for_notes(run_folder)
    parent.send_signal(number)
    _, err = parent.communicate(timeout=30)
    assert parent.returncode == code, err
    for rank in (0, 1):
        assert (run_folder / f"note{rank}").read_text() == "saved, child alive: True"
    assert processes_of(run_folder) == []


@pytest.mark.faults
def test_ranks_that_ignore_the_signal_are_killed_after_the_grace(run_folder):
    parent = start_parent(run_folder, "ignore_signals", "1.0")
    wait_for_notes(run_folder)
    parent.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, err = parent.communicate(timeout=30)
    assert 1.0 <= time.monotonic() - began < 6.0
    assert parent.returncode == 137, err
    assert processes_of(run_folder) == []


@pytest.mark.faults
def test_everything_ends_with_a_killed_parent(run_folder):
    parent = start_parent(run_folder, "ignore_signals")
    wait_for_notes(run_folder)
    assert len(processes_of(run_folder)) == 2
    parent.kill()
    parent.communicate()
    poll(lambda: processes_of(run_folder) == [], seconds=10)


def test_rank_0_keeps_the_terminal(run_folder):
    import pty

    main, side = pty.openpty()
    command = [sys.executable, "-c", PARENT, str(run_folder), "rank_functions:succeed"]
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side)
    os.close(side)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error to its reader
        while block := os.read(main, 4096):
            shown += block
    assert process.wait() == 0
    os.close(main)
    assert b"hello from rank 0: same terminal=True" in shown


def test_single_rank_launched_from_a_thread_has_a_process_of_its_own(run_folder):
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run(run_folder, "succeed", num_processes=1)))
    thread.start()
    thread.join()
    assert codes == [0]
    assert (run_folder / "note0").read_text().startswith("RANK=0 WORLD_SIZE=1")
