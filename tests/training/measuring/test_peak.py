import pytest
import torch

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.observed.measured import MeasuredDevice, Measurements
from lmtrain.training import peak
from lmtrain.training.peak import device_peak, measure_matmul

LOCAL = Cluster(name="local")


def with_gpu(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)


def bf16_peak(cluster, accelerator="auto"):
    return device_peak(cluster, matmul="bf16", accelerator=accelerator)


@pytest.fixture
def _quick_measurement(monkeypatch):
    monkeypatch.setattr(peak, "SIDE", 128)
    monkeypatch.setattr(peak, "MEASURED_SECONDS", 0.02)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_known_gpu_has_the_peak_of_its_data_sheet(monkeypatch):
    with_gpu(monkeypatch, "NVIDIA H100 80GB HBM3")
    found = bf16_peak(LOCAL)
    assert found is not None
    assert found.flops == 989.4e12  # NVIDIA's data sheet: 1,979 with 2:4 sparsity
    assert found.source == "NVIDIA H100 80GB HBM3 bf16 dense"


def test_a_peak_that_a_person_gave_wins(monkeypatch):
    cluster = Cluster(name="mine", peak_flops=5e12)
    for name in ("NVIDIA H100 80GB HBM3", "an unknown device"):
        with_gpu(monkeypatch, name)
        found = bf16_peak(cluster)
        assert found is not None
        assert (found.flops, found.source) == (5e12, "cluster.peak_flops")


@pytest.mark.usefixtures("_quick_measurement")
def test_a_plan_for_another_device_uses_that_device_s_peak_on_a_machine_without_it():
    found = bf16_peak(Cluster(name="h200", device="NVIDIA H200"))
    assert found is not None
    assert found.source == "NVIDIA H200 bf16 dense"


@pytest.mark.usefixtures("_quick_measurement")
def test_a_cpu_is_measured_and_says_so():
    found = device_peak(LOCAL, matmul="fp32", accelerator="auto")
    assert found is not None
    assert 1e7 < found.flops < 1e14
    threads = torch.get_num_threads()
    assert found.source.startswith(
        f"measured here: fp32 product of two 128 x 128 matrices on {threads} thread{'s' * (threads > 1)}"
    )


@pytest.mark.parametrize(
    ("rates", "flops", "note"),
    [((5.0, 9.0, 8.9), 9.0, "1 thread"), ((9.0, 5.0) * 3, 9.0, "1 thread; the machine is busy: 5 tries")],
)
def test_a_cpu_is_measured_until_two_results_agree_or_the_machine_is_called_busy(monkeypatch, rates, flops, note):
    given = iter(rates)
    monkeypatch.setattr(peak, "measure_matmul", lambda dtype: next(given))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    found = device_peak(LOCAL, matmul="fp32", accelerator="auto")
    assert found is not None
    assert found.flops == flops
    assert found.source.partition(" on ")[2].startswith(note)


def test_a_measurement_counts_a_multiplication_and_an_addition_per_product(monkeypatch):
    clock, processor = iter([0.0, 1.0, 2.0, 9.0]), iter([0.0, 3.0, 3.0, 3.5])  # the rest is of other processes
    monkeypatch.setattr(peak.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(peak.time, "thread_time", lambda: next(processor))
    monkeypatch.setattr(peak, "SIDE", 4)
    monkeypatch.setattr(peak, "MEASURED_SECONDS", 4.2)
    assert measure_matmul(torch.float32) == 2 * 4**3 / 0.5


def test_a_gpu_that_no_table_has_goes_by_its_measured_peak(monkeypatch):
    measured = Measurements(devices=(MeasuredDevice(kind="gpu", name="Mine", matmul_flops={"bf16": 1e14}),))
    for name, flops in (("Mine", 1e14), ("NVIDIA H100 80GB HBM3", 989.4e12)):
        with_gpu(monkeypatch, name)
        found = device_peak(LOCAL, matmul="bf16", accelerator="auto", measured=measured)
        assert found is not None
        assert found.flops == flops
    with_gpu(monkeypatch, "Other")
    assert device_peak(LOCAL, matmul="bf16", accelerator="auto", measured=measured) is None
