from lmtrain.accounting.machine.hardware import DEVICES, MATMUL_DTYPES
from lmtrain.accounting.machine.tensor_size import FORMATS_OF_BITS, TensorSize
from lmtrain.accounting.training_plan.products import of_table, product_of, product_rows
from lmtrain.report.plans.calc_page import COLUMNS, matmul_page, tensor_page

ALL = [of_table(device) for device in DEVICES.values()]


def tensor(*shape: int) -> str:
    return tensor_page(shape, {names: TensorSize(shape=shape, bits=bits) for bits, names in FORMATS_OF_BITS.items()})


def product(*sides: int, devices=ALL, dtypes=MATMUL_DTYPES) -> str:
    m, k, n = sides
    found = product_of((m, k), (k, n))
    return matmul_page((m, k), (k, n), found, list(product_rows(found, devices, dtypes)))


def test_pages_fit_eighty_columns():
    pages = [
        tensor(128_000, 128_000, 1000),
        tensor(3),
        product(16_384, 8192, 53_248),
        product(1, 4096, 128_256),
        product(3, 3, 3, dtypes=["bf16"]),
    ]
    assert max(len(line) for page in pages for line in page.splitlines()) <= COLUMNS


def test_sizes_have_both_units():
    assert ["fp32,", "tf32,", "int32", "4", "2,415,919,104", "2.416", "2.250"] in cells(tensor(49152, 12288))
    assert ["fp4,", "int4", "0.5", "8,388,608", "0.008389", "0.007812"] in cells(tensor(4096, 4096))
    assert ["fp8,", "int8,", "uint8,", "bool", "1", f"{10**16:,}", "10,000,000", "9,313,226"] in cells(tensor(10**16))


def cells(page: str) -> list[list[str]]:
    return [line.split() for line in page.splitlines()]


def test_a_product_says_what_it_computes_moves_and_waits_for():
    page = product(4096, 4096, 16384, dtypes=["bf16"])
    assert "FLOPs  549.8 GFLOP = 2 x 4,096 x 4,096 x 16,384" in page
    assert "bytes  302 MB, 288 MiB in bf16" in page
    (line,) = [line for line in page.splitlines() if line.startswith("NVIDIA H100 80GB")]
    assert line.split()[4:] == ["989.4", "1,820", "295.3", "556", "us", "compute", "97%"]
    thin = product(1, 4096, 4096, devices=ALL[:1], dtypes=["bf16"])
    assert "memory" in thin
    assert "tiles:" not in thin
    assert "Starting a kernel takes" in product(2, 2, 2, dtypes=["bf16"])


def test_several_formats_stand_below_their_device():
    page = product(4096, 4096, 4096, devices=ALL[:2])
    assert page.index("\nNVIDIA H100 80GB HBM3\n") < page.index("\n  fp8") < page.index("\nNVIDIA H100 PCIe\n")
    assert "in bf16, fp16\n         201.3 MB, 192 MiB in tf32, fp32" in page
