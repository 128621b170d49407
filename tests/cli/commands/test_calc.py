"""Calculations as a person types them."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmtrain.accounting.machine.hardware import DEVICES, MatmulDtype
from lmtrain.accounting.observed.measured import MeasuredDevice, Measurements
from lmtrain.cli.commands.calc import calc
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.measurements import write_measurements

H100 = "NVIDIA H100 80GB HBM3"


def num_with(dtype: MatmulDtype) -> int:
    """Count the devices with products in a format."""
    return sum(device.peak_flops(dtype) is not None for device in DEVICES.values())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert calc([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        "49152x12288 fp32",
        "49152,12288 dtype=float32",
        "[49152, 12288] torch.float32",
        "shape=49152x12288 fp32",
        "shape=(49152,12288) dtype=fp32",
    ],
)
def test_a_tensor_in_one_format(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "tensor", *words.split())
    assert found == {"shape": [49152, 12288], "num_values": 603_979_776, "bytes": {"fp32": 2_415_919_104}}


def test_a_tensor_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "tensor", "32", "8192", "128256")["bytes"]
    assert (found["bf16"], found["fp8"], found["int4"]) == (67_243_081_728, 33_621_540_864, 16_810_770_432)
    assert calc(["tensor", "32x8192x128256"]) == 0
    assert "67.243   62.625" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        "4096 4096 16384",
        "4096x4096x16384",
        "m=4096 k=4096 n=16384",
        "4096x4096 4096x16384",
        "[4096, 4096] x [4096, 16384]",
        "4096,4096 @ 4096,16384",
        "4Ki 4Ki 16Ki",
    ],
)
def test_a_product_however_it_is_written(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "matmul", *words.split())
    assert (found["left"], found["right"], found["flops"]) == ([4096, 4096], [4096, 16384], 549_755_813_888)
    first = found["rows"][0]
    assert (len(found["rows"]), first["device"], first["dtype"]) == (num_with("bf16"), H100, "bf16")
    assert first["seconds"] == pytest.approx(549_755_813_888 / 989.4e12)


def test_a_vector_is_a_row_or_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "matmul", "4096x4096", "4096")["right"] == [4096, 1]
    assert asked(capsys, "matmul", "4096", "4096x16")["left"] == [1, 4096]


def test_devices_and_formats_are_chosen_apart_and_together(capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*words: str) -> list[tuple[str, str]]:
        found = asked(capsys, "matmul", "64", "64", "64", *words)["rows"]
        return [(row["device"], row["dtype"]) for row in found]

    assert len(rows("device=h100")) == 15
    assert [dtype for _, dtype in rows(f"device={H100}")] == ["bf16", "fp16", "tf32", "fp32", "fp8"]
    assert len(rows("fp8")) == num_with("fp8")
    assert rows("device=NVIDIA H200", "dtype=fp8") == [("NVIDIA H200", "fp8")]


def test_a_device_of_one_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["matmul", "1000", "1000", "1000", "peak_flops=1P", "memory_bytes_per_second=1TB"]
    (row,) = asked(capsys, *words, "device=MI300")["rows"]
    assert (row["device"], row["balance"]) == ("MI300", 1000)
    assert row["seconds"] == pytest.approx(6e-6)  # 6 MB at 1 TB/s, where computing takes 2 us


def test_what_was_measured_here_stands_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = MeasuredDevice(kind="gpu", name=H100, matmul_flops={"bf16": 7.5e14}, copy_bytes_per_second=2.8e12)
    cpu = MeasuredDevice(
        kind="cpu", name="Some", threads=2, matmul_flops={"fp32": 1e11, "bf16": 2e11}, copy_bytes_per_second=1e10
    )
    write_measurements(tmp_path / ".cache", Measurements(devices=(gpu, cpu)))
    words = ["matmul", "4096", "4096", "4096"]
    table, measured = asked(capsys, *words, f"device={H100}", "bf16")["rows"]
    assert measured["seconds"] / table["seconds"] == pytest.approx(989.4 / 750)
    assert asked(capsys, *words)["rows"][-1]["device"] == "this CPU, 2 threads"
    assert [row["dtype"] for row in asked(capsys, *words, "device=cpu")["rows"]] == ["bf16", "fp32"]
    calc(words)
    page = capsys.readouterr().out
    assert "\n  measured here " in page
    assert "measured: by `lmtrain doctor`" in page
    calc([*words, f"device={H100}"])
    assert "\n  bf16 measured here " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gemm 3 3 3", "Did you mean 'matmul'"),
        ("tenser 3", "Did you mean 'tensor'"),
        ("flops 3", "lmtrain plan --help"),
        ("tensor", "needs its shape, as in `lmtrain calc tensor 4096x4096 bf16`"),
        ("tensor 4096 bananas", "bananas of shape=4096 bananas is not a whole number"),
        ("tensor 4096 dtype=bf17", "Did you mean 'bf16'"),
        ("tensor 10x10 int3", "^dtype=int3 is not one of fp64, int64, fp32"),
        ("tensor 4096 bf16 fp32", "dtype=bf16 is given already"),
        ("tensor 4096 device=h100", "device=h100: tensor has shape, dtype"),
        ("tensor 4096 shape=4x4", "shape=4x4 and 4096 are two shapes"),
        ("matmul", "given: none"),
        ("matmul 4096 4096", "needs m, k and n.*given: 4096 4096"),
        ("matmul m=3 k=4", "given: m=3 k=4"),
        ("matmul m=0 k=4 n=4", "m=0 is below 1"),
        ("matmul 3x4 5x6", "inner dimensions, 4 and 5, differ"),
        ("matmul 3 3 3 int8", "dtype=int8 is not one of bf16"),
        ("matmul 3 3 3 --dtype fp8", "--json is the only flag of matmul, and settings have no dashes; write dtype=fp8"),
        ("matmul 3 3 3 gpu=h100", "Did you mean 'device'"),
        ("matmul 3 3 3 device=h100-sxm", "Did you mean 'NVIDIA H100 80GB HBM3'"),
        ("matmul 3 3 3 device=a10 fp8", "no peak of device=a10"),
        ("matmul 3 3 3 device=cpu", "run `lmtrain doctor`"),
        ("matmul 3 3 3 peak_flops=100T", "memory_bytes_per_second is missing"),
        ("matmul 3 3 3 peak_flops=0 memory_bytes_per_second=1TB", "peak_flops=0 is not above 0"),
        ("matmul 3 3 3 peak_flops=fast memory_bytes_per_second=1TB", "peak_flops=fast is not a number"),
    ],
)
def test_bad_words_are_refused_with_the_nearest_right_form(words: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        calc(words.split())


@pytest.mark.parametrize("words", [[], ["--help"], ["matmul", "--help"]])
def test_help_fits_a_screen(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert calc(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
