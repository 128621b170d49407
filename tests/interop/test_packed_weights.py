"""The reference is transformers, which unpacks the published files of gpt-oss and DeepSeek."""

import pytest
import torch
from safetensors.torch import save_file

from lmtrain.errors import DataError
from lmtrain.interop.packed_weights import unpack_fp8, unpack_mxfp4, unpacked
from lmtrain.interop.safetensors_files import SINGLE, WeightFiles


def random_mxfp4():
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, (2, 6, 3, 16), dtype=torch.uint8, generator=generator)
    return blocks, torch.randint(110, 135, (2, 6, 3), dtype=torch.uint8, generator=generator)


def random_fp8():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(10, 13, generator=generator).to(torch.float8_e4m3fn)
    return weight, torch.rand(3, 4, generator=generator) + 0.5


def test_mxfp4_unpacks_as_in_transformers_to_the_bit():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = random_mxfp4()
    assert torch.equal(unpack_mxfp4(blocks, scales), convert_moe_packed_tensors(blocks, scales))


def test_fp8_blocks_that_end_within_a_matrix_have_their_own_scale():
    weight, scales = random_fp8()
    expected = [[float(weight[i, j].float() * scales[i // 4, j // 4]) for j in range(13)] for i in range(10)]
    assert torch.equal(unpack_fp8(weight, scales, (4, 4)), torch.tensor(expected).bfloat16())


def test_a_folder_shows_unpacked_tensors_under_their_own_names(tmp_path):
    blocks, scales = random_mxfp4()
    weight, inverse = random_fp8()
    stored = {"a_blocks": blocks, "a_scales": scales, "b.weight": weight, "b.weight_scale_inv": inverse}
    save_file({**stored, "c_scales": torch.ones(2)}, tmp_path / SINGLE)
    files = unpacked(WeightFiles(tmp_path), {"quant_method": "fp8", "weight_block_size": [4, 4]})
    assert {name: (facts.dtype, facts.shape) for name, facts in files.facts.items()} == {
        "a": ("BF16", (2, 96, 6)),
        "b.weight": ("BF16", (10, 13)),
        "c_scales": ("F32", (2,)),
    }
    assert torch.equal(files.read("a"), unpack_mxfp4(blocks, scales))
    assert torch.equal(files.read("b.weight"), unpack_fp8(weight, inverse, (4, 4)))
    with pytest.raises(DataError, match="quant_method=awq is not supported; supported: mxfp4, fp8"):
        unpacked(WeightFiles(tmp_path), {"quant_method": "awq"})
