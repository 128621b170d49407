import pytest

from lmtrain.accounting.machine.hardware import DEVICES, MATMUL_DTYPES
from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.accounting.training_plan.products import as_measured, of_table, product_of, product_rows
from lmtrain.errors import ConfigurationError

H100 = of_table(DEVICES["NVIDIA H100 80GB HBM3"])


@pytest.mark.parametrize(
    ("left", "right", "flops"),
    [
        ((1024, 4096), (4096, 4096), 34_359_738_368),
        ((4, 8, 16, 32), (32, 2), 65_536),
        ((32, 16, 2048, 128), (32, 16, 128, 2048), 2 * 32 * 16 * 2048 * 128 * 2048),
    ],
)
def test_two_flops_for_each_pair_of_numbers(left, right, flops):
    assert product_of(left, right).flops == flops


def test_leading_dimensions_are_rows_of_one_matrix_or_products_of_their_own():
    rows, several = product_of((8, 64, 32), (32, 16)), product_of((8, 64, 32), (8, 32, 16))
    assert (rows.num_products, rows.num_rows, several.num_products, several.num_rows) == (1, 512, 8, 64)
    assert rows.flops == several.flops
    assert several.num_bytes("bf16") - rows.num_bytes("bf16") == 2 * 7 * 32 * 16  # seven more matrices


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((4, 8), (16, 8), "inner dimensions, 8 and 16, differ; nearest valid: the second transposed, 8x16"),
        ((4, 8), (16, 9), "nearest valid: 8x9"),
        ((3, 4, 8), (2, 8, 5), "leading dimensions differ; nearest valid: 8x5"),
    ],
)
def test_dimensions_that_do_not_meet_are_refused(left, right, message):
    with pytest.raises(ConfigurationError, match=message):
        product_of(left, right)


def test_a_row_a_format_that_the_device_has():
    product = product_of((4096, 4096), (4096, 4096))
    assert [row.dtype for row in product_rows(product, [H100], MATMUL_DTYPES)] == list(MATMUL_DTYPES)
    a100 = of_table(DEVICES["NVIDIA A100-SXM4-40GB"])
    assert [row.dtype for row in product_rows(product, [a100], MATMUL_DTYPES)] == ["bf16", "fp16", "tf32", "fp32"]


def test_the_balance_parts_computing_from_memory():
    (row,) = product_rows(product_of((4096, 4096), (4096, 4096)), [H100], ["bf16"])
    assert row.balance == pytest.approx(295.3, rel=1e-3)
    for side in (128, 512, 1024, 8192):
        (row,) = product_rows(product_of((side, side), (side, side)), [H100], ["bf16"])
        assert row.time.is_bound_by_memory == (row.intensity < row.balance)
        assert row.to_json()["seconds"] == row.time.seconds


def test_only_tensor_cores_have_tiles():
    rows = {row.dtype: row for row in product_rows(product_of((256, 64), (64, 128)), [H100], MATMUL_DTYPES)}
    assert rows["bf16"].tile_use == pytest.approx(1 / 132)
    assert rows["fp32"].tile_use is None


def test_a_measured_device_stands_by_its_measurements():
    cpu = MeasuredDevice(
        kind="cpu", name="Some CPU", threads=2, matmul_flops={"fp32": 1e11}, copy_bytes_per_second=1e10
    )
    device = as_measured(cpu)
    assert device is not None
    assert (device.name, device.is_measured) == ("this CPU, 2 threads", True)
    (row,) = product_rows(product_of((1000, 1000), (1000, 1000)), [device], MATMUL_DTYPES)
    assert row.time.seconds == pytest.approx(2e9 / 1e11)
    assert as_measured(MeasuredDevice(kind="gpu", name="Some GPU", matmul_flops={"bf16": 1e14})) is None
