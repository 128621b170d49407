import pytest

from lmtrain.accounting.machine.hardware import DEVICES
from lmtrain.accounting.training_plan.roofline import product_time

H100 = DEVICES["NVIDIA H100 80GB HBM3"]


def time_of(side, *, rows=None, device=H100, dtype="bf16"):
    found = product_time(device, dtype, num_rows=rows or side, num_inner=side, num_columns=side)
    assert found is not None
    return found


def test_a_large_square_product_is_bound_by_the_peak():
    found = time_of(8192)
    assert found.seconds == found.compute_seconds == pytest.approx(2 * 8192**3 / 989.4e12)
    assert not found.is_bound_by_memory


def test_a_single_row_is_bound_by_memory():
    found = time_of(4096, rows=1)
    assert found.is_bound_by_memory
    assert found.seconds == pytest.approx(2 * (4096 * 4096 + 2 * 4096) / 3.35e12)


def test_half_the_bytes_move_in_half_the_time():
    assert time_of(4096, dtype="fp8").memory_seconds == time_of(4096).memory_seconds / 2
    assert time_of(4096, dtype="tf32").memory_seconds == time_of(4096).memory_seconds * 2


def test_a_format_that_a_device_lacks_has_no_time():
    assert product_time(DEVICES["NVIDIA L4"], "fp8", num_rows=64, num_inner=64, num_columns=64) is None
