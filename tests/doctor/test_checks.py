"""The doctor's checks, on hardware that is not here, by what its tools print."""

import os
import resource
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtrain.accounting.observed.measured import MOST_TRIES, MeasuredDevice
from lmtrain.doctor import checks, disk
from lmtrain.doctor.checks import NEEDED_SHARED_BYTES, Gpu, lacking_formats, precision_support
from lmtrain.doctor.measure import measure_cpu, measure_until_two_agree
from lmtrain.training import peak
from tests import facts

H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0), 80 * 10**9)
V100 = Gpu("Tesla V100", (7, 0), 1)
NVLINK = """
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV18    PIX     0-51            0
GPU1    NV18     X      SYS     0-51            0
NIC0    PIX     SYS      X

Legend:
  X    = Self
"""


def test_a_driver_without_a_gpu_for_torch_is_bad() -> None:
    assert checks.driver([], None).state == "ok"
    assert checks.driver([], "550.54.15\n").state == "bad"
    assert "2 x NVIDIA H100 80GB HBM3, driver 550.54.15" in checks.driver([H100, H100], "550.54.15\n").found


def test_mixed_and_unknown_devices_are_reported() -> None:
    assert checks.same_devices([H100, H100]) == []
    other = Gpu("NVIDIA H100 80GB HBM4", (9, 0), 1)
    assert [finding.name for finding in checks.same_devices([H100, other])] == ["same devices", "known peak"]


def test_precision_is_compared_with_the_hardwares_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    def support(*found: Gpu, wanted: str) -> str:
        return precision_support(lacking_formats([*found]), wanted=facts.precision(wanted), fitting="fp32").state

    assert (lacking_formats([H100]), lacking_formats([V100])) == (frozenset(), {"bf16", "tf32", "fp8"})
    assert [support(V100, wanted=each) for each in ("bf16_mixed", "fp32")] == ["warn", "ok"]
    monkeypatch.setattr(checks, "bf16_flags", set)
    assert [support(wanted=each) for each in ("bf16_mixed", "fp16_mixed", "fp32")] == ["warn", "warn", "ok"]


@pytest.mark.parametrize(
    ("topology", "kind"),
    [
        (NVLINK, "NVLink (NV18)"),
        (NVLINK.replace("NV18", "PHB"), "PCIe (PHB)"),
        (NVLINK.replace("GPU0    GPU1", "\x1b[4mGPU0    GPU1\x1b[0m"), "NVLink (NV18)"),
        ("", None),
    ],
)
def test_the_slowest_link_between_gpus_counts(topology: str, kind: str | None) -> None:
    assert checks.link_kind(topology) == kind


def test_links_matter_between_gpus_and_between_nodes(tmp_path: Path) -> None:
    links = partial(checks.links, whole_copies="strategy=mine")
    assert links(1, None, num_nodes=1) == []
    assert [finding.state for finding in links(2, NVLINK, num_nodes=1)] == ["ok"]
    assert [finding.state for finding in links(2, None, num_nodes=2, infiniband=tmp_path)] == ["warn", "warn"]
    (tmp_path / "mlx5_0").mkdir()
    assert links(1, None, num_nodes=2, infiniband=tmp_path)[0].found == "InfiniBand mlx5_0"


def test_a_missing_nvidia_smi_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert checks.nvidia_smi("-L") is None


def test_limits_of_the_system_are_compared_with_the_runs_needs(tmp_path: Path) -> None:
    free = NEEDED_SHARED_BYTES
    shared = [checks.shared_memory(num_processes=num, free=free).state for num in (1, 8, 32)]
    assert shared == ["ok", "warn", "bad"]
    assert checks.shared_memory(num_processes=8, folder=tmp_path / "none").state == "ok"
    files = [checks.open_files(limit).state for limit in (resource.RLIM_INFINITY, 65_536, 1024, 64)]
    assert files == ["ok", "ok", "warn", "bad"]
    assert [checks.cores(num).state for num in (1, 100_000)] == ["ok", "warn"]


def test_a_compiler_is_found_on_the_path_or_in_cxx(tmp_path: Path) -> None:
    assert checks.compiler({"PATH": str(tmp_path)}, without="compile=none").state == "warn"
    mine = tmp_path / "my-cxx"
    mine.touch(mode=0o755)
    assert checks.compiler({"PATH": str(tmp_path), "CXX": "my-cxx"}, without="").found == str(mine)


def test_disk_room_is_for_all_kept_checkpoints_and_one_more(tmp_path: Path) -> None:
    assert disk.nearest_folder(tmp_path / "a" / "b") == tmp_path
    states = [disk.disk_room(tmp_path / "a", needed_bytes=100, free=free).state for free in (1000, 150, 99)]
    assert states == ["ok", "warn", "bad"]


def test_measuring_a_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.disk_speed(tmp_path, checkpoint_bytes=10**16, num_bytes=4096).state == "warn"
    assert list(tmp_path.iterdir()) == []

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    assert disk.disk_speed(tmp_path, checkpoint_bytes=1).state == "bad"


def test_a_tracking_server_answers_or_not_and_its_secret_is_hidden() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert checks.tracking_store(f"http://127.0.0.1:{port}").state == "ok"
    silent = checks.tracking_store(f"http://me:secret@127.0.0.1:{port}")
    assert silent.state == "bad"
    assert "secret" not in silent.found


def test_a_tracking_database_must_be_writable(tmp_path: Path) -> None:
    assert checks.tracking_store(f"sqlite:///{tmp_path / 'a' / 'mlflow.db'}").state == "ok"
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        assert checks.tracking_store(f"sqlite:///{tmp_path / 'mlflow.db'}").state == "bad"


@pytest.mark.parametrize(
    ("rates", "num_tries", "best", "state"),
    [
        ((100.0, 97.0, 1.0), 2, 100.0, "ok"),
        ((50.0, 100.0, 96.0), 3, 100.0, "ok"),
        ((100.0, 50.0, 90.0, 40.0, 80.0, 80.0), MOST_TRIES, 100.0, "warn"),
    ],
)
def test_a_device_is_measured_until_two_results_agree(
    rates: tuple[float, ...], num_tries: int, best: float, state: str
) -> None:
    calls: list[float] = []

    def measure() -> MeasuredDevice:
        calls.append(rates[len(calls)])
        return MeasuredDevice(kind="cpu", name="x", matmul_flops={"fp32": calls[-1], "bf16": 7.0})

    settled = measure_until_two_agree(measure)
    assert len(calls) == num_tries
    assert settled.device.matmul_flops == {"fp32": best, "bf16": 7.0}
    assert settled.finding.state == state
    assert bool(settled.device.doubt) == (state == "warn")


def test_a_cpu_is_measured_with_its_threads_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SIDE", 128)
    monkeypatch.setattr(peak, "MEASURED_SECONDS", 0.02)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    default = torch.get_num_threads()
    device = measure_cpu(threads=1, copy_bytes=2**20)
    assert (device.kind, device.threads, device.default_threads) == ("cpu", 1, default)
    assert min(device.matmul_flops[dtype] for dtype in ("fp32", "bf16")) > 1e7
    assert torch.get_num_threads() == default
    of_two = measure_cpu(num_ranks=2, copy_bytes=2**20)
    assert (of_two.default_threads, of_two.threads) == (default, max(1, default // 2))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert measure_cpu(num_ranks=2, copy_bytes=2**20).default_threads is None
