import pytest

from lmtrain.accounting.machine.hardware import DEVICES
from lmtrain.accounting.training_plan.roofline import MatrixProduct, product_time

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
    assert product_time(DEVICES["NVIDIA A10"], "fp8", num_rows=64, num_inner=64, num_columns=64) is None


def square(side, **more):
    return MatrixProduct(num_rows=side, num_inner=64, num_columns=side, **more)


def test_tiles_and_waves_are_those_of_nvidia_s_guide():
    assert square(1792).tile_use(108) == pytest.approx(98 / 108)  # 7 x 14 tiles of 256 x 128 on an A100
    over = square(1793)  # 8 x 15 tiles: a second wave for twelve of them
    assert over.tile_use(108) == pytest.approx(1793**2 / (2 * 108 * 256 * 128))
    assert square(256 * 128).tile_use(128) == 1
    assert square(1792, num_products=54).tile_use(108) == pytest.approx(49 / 49)  # 54 x 98 tiles fill 49 waves


def test_a_tile_lies_whichever_way_wastes_less():
    flat = MatrixProduct(num_rows=128, num_inner=64, num_columns=256 * 108)
    assert flat.tile_use(108) == 1


def test_intensities_are_those_of_nvidia_s_guide():
    thin = MatrixProduct(num_rows=8192, num_inner=8192, num_columns=128)
    assert thin.intensity("fp16") == pytest.approx(124.1, rel=1e-3)
    assert MatrixProduct(num_rows=8192, num_inner=8192, num_columns=8192).intensity("fp16") == pytest.approx(8192 / 3)
