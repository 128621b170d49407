import pytest
import torch

from lmtrain.accounting.machine.number_formats import FORMATS

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


@pytest.mark.parametrize("name", DTYPES)
def test_ranges_are_torchs(name):
    ours, torchs = FORMATS[name], torch.finfo(DTYPES[name])
    assert ours.largest == torchs.max
    assert ours.smallest_normal == torchs.tiny
    assert ours.epsilon == torchs.eps
    assert ours.num_bytes * 8 == torchs.bits


def test_largest_numbers_are_the_published_ones():
    published = {"fp32": 3.4028e38, "fp16": 65504, "bf16": 3.3895e38, "e4m3": 448, "e5m2": 57344}
    assert {name: FORMATS[name].largest for name in published} == pytest.approx(published, rel=1e-4)
