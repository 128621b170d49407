"""Calculations as a person types them, against torch and published figures."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.machine.hardware import DEVICES
from lmtrain.accounting.machine.number_formats import parse_shape
from lmtrain.accounting.training_plan.roofline import product_of, product_times
from lmtrain.cli.commands.calc import calc

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert calc([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("words", ["49152x12288 fp32", "49152,12288 dtype=float32", "[49152, 12288] torch.float32"])
def test_a_tensor_in_one_format(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "tensor", *words.split())
    assert found == {"shape": [49152, 12288], "num_values": 603_979_776, "bytes": {"fp32": 2_415_919_104}}


def test_a_tensor_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "tensor", "32", "8192", "128256")["bytes"]
    assert (found["bf16"], found["fp8"], found["int4"]) == (67_243_081_728, 33_621_540_864, 16_810_770_432)
    calc(["tensor", "32x8192x128256"])
    page = capsys.readouterr().out
    assert "67.243 62.625" in " ".join(page.split())


@pytest.mark.parametrize(
    "words",
    [
        "4096 4096 16384",
        "4096x4096x16384",
        "4096x4096 4096x16384",
        "4Ki 4Ki 16Ki",
    ],
)
def test_a_product_however_it_is_written(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "matmul", *words.split())
    assert (found["left"], found["right"], found["flops"]) == ([4096, 4096], [4096, 16384], 549_755_813_888)
    first = found["rows"][0]
    assert (len(found["rows"]), first["device"], first["dtype"]) == (
        sum(device.peak_flops("bf16") is not None for device in DEVICES.values()),
        H100,
        "bf16",
    )
    assert first["seconds"] == pytest.approx(549_755_813_888 / 989.4e12)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.sampled_from(["x", ",", ", ", " "]))
def test_a_shape_reads_back_however_it_was_written(shape: list[int], between: str) -> None:
    written = between.join(map(str, shape))
    assert parse_shape(written) == parse_shape(f"[{written}]") == tuple(shape)


def test_a_large_square_is_bound_by_the_peak_and_a_row_by_memory() -> None:
    def time(rows: int, side: int) -> Any:
        (found,) = product_times(product_of((rows, side), (side, side)), [DEVICES[H100]], ["bf16"])
        return found

    assert time(8192, 8192)["seconds"] == pytest.approx(2 * 8192**3 / 989.4e12)
    row = time(1, 4096)
    assert row["is_bound_by_memory"]
    assert row["seconds"] == pytest.approx(2 * (4096 * 4096 + 2 * 4096) / 3.35e12)
    assert not [*product_times(product_of((64, 64), (64, 64)), [DEVICES["NVIDIA A10"]], ["fp8"])]
    (thin,) = product_times(product_of((8192, 8192), (8192, 128)), [DEVICES[H100]], ["fp16"])
    assert thin["intensity"] == pytest.approx(124.1, rel=1e-3), "of NVIDIA's guide"
