"""The doctor's checks, on hardware that is not here, by what its tools print."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lmtrain.accounting.observed.measured import MOST_TRIES, MeasuredDevice
from lmtrain.doctor import checks
from lmtrain.doctor.checks import Gpu, lacking_formats, precision_support
from lmtrain.doctor.measure import measure_cpu, measure_until_two_agree
from lmtrain.training import peak
from tests import facts

H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0))
V100 = Gpu("Tesla V100", (7, 0))
NVLINK = """
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV18    PIX     0-51            0
GPU1    NV18     X      SYS     0-51            0
NIC0    PIX     SYS      X

Legend:
  X    = Self
"""


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


def test_measuring_a_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.disk_speed(tmp_path, checkpoint_bytes=10**16, num_bytes=4096).state == "warn"
    assert list(tmp_path.iterdir()) == []

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    assert checks.disk_speed(tmp_path, checkpoint_bytes=1).state == "bad"


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

    device, finding = measure_until_two_agree(measure)
    assert len(calls) == num_tries
    assert device.matmul_flops == {"fp32": best, "bf16": 7.0}
    assert finding.state == state


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
