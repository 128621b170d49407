import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.machine.hardware import MATMUL_DTYPES
from lmtrain.accounting.machine.tensor_size import BITS, TensorSize, find_format, parse_shape, require_format
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("shape", "dtype", "num_bytes"),
    [
        ((49152, 12288), "fp32", 2_415_919_104),  # 2.416 GB, 2.25 GiB
        ((32, 8192, 128256), "bf16", 67_243_081_728),
        ((7,), "int4", 4),  # 28 bits
        ((3, 5), "fp8", 15),
    ],
)
def test_bytes_are_values_times_their_width(shape, dtype, num_bytes):
    assert TensorSize(shape=shape, bits=BITS[dtype]).num_bytes == num_bytes


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.sampled_from(["x", ",", ", ", " ", "*", " x "]))
def test_a_shape_reads_back_however_it_was_written(shape, apart):
    written = apart.join(map(str, shape))
    assert parse_shape(written) == parse_shape(f"[{written}]") == tuple(shape)


def test_dimensions_read_as_people_write_amounts():
    assert parse_shape("4Kix4K") == (4096, 4000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no dimension; write it as 4096x4096"),
        ("4096x", "^shape=4096x lacks a dimension; write a shape as 4096x4096"),
        ("4096,,2", "lacks a dimension"),
        ("4096x-1", "-1 of shape=4096x-1 is not a whole number of at least 1"),
        ("0", "^0 is not a whole number of at least 1"),
        ("2.5x4", "2.5 of shape"),
        ("4096xbf16", "is a format; write it apart: 4096 bf16"),
        ("1Px1Px1P", "more than any memory"),
    ],
)
def test_what_is_no_shape_is_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_shape(text)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64])
def test_torch_s_names_are_known_and_as_wide(dtype):
    ours = find_format(str(dtype))
    assert ours is not None
    assert BITS[ours] == 8 * dtype.itemsize


@pytest.mark.parametrize(("word", "near"), [("bf17", "bf16"), ("bfloat61", "bf16"), ("fp64", ""), ("qqq", "")])
def test_another_format_is_refused_with_the_nearest(word, near):
    with pytest.raises(ConfigurationError, match="is not one of bf16, fp16, tf32, fp32, fp8") as refused:
        require_format(word, MATMUL_DTYPES)
    assert not near or f"Did you mean '{near}'" in str(refused.value)
    assert require_format("torch.BFloat16", MATMUL_DTYPES) == "bf16"


def test_a_gibibyte_is_a_power_of_two():
    assert TensorSize(shape=(1024, 1024, 512), bits=16).num_bytes == 2**30 == math.prod((1024, 1024, 512)) * 2
