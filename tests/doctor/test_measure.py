import pytest
import torch

from lmtrain.doctor.measure import measure_cpu
from lmtrain.training.measuring import peak


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(peak, "SIDE", 128)
    monkeypatch.setattr(peak, "MEASURED_SECONDS", 0.02)


def test_a_cpu_is_measured_with_the_asked_threads_and_left_as_it_was(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    device = measure_cpu(threads=1, copy_bytes=2**20)
    assert (device.kind, device.threads, device.default_threads) == ("cpu", 1, before)
    assert device.matmul_flops.keys() == {"fp32", "bf16"}
    assert min(device.matmul_flops.values()) > 1e7
    assert (device.copy_bytes_per_second or 0) > 1e7
    assert torch.get_num_threads() == before


def test_torch_s_own_choice_of_threads_is_kept_as_the_default(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    default = torch.get_num_threads()
    of_two = measure_cpu(num_ranks=2, copy_bytes=2**20)
    assert (of_two.default_threads, of_two.threads) == (default, max(1, default // 2)), "a rank's share"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert measure_cpu(num_ranks=2, copy_bytes=2**20).default_threads is None
