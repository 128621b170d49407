"""The reference is transformers, which unpacks the published files of gpt-oss and DeepSeek."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmtrain.errors import DataError
from lmtrain.interop.hf_import import import_folder, open_hugging_face
from lmtrain.interop.packed_weights import unpack_fp8, unpack_mxfp4, unpacked
from lmtrain.interop.safetensors_files import SINGLE, WeightFiles
from tests.interop import families
from tests.interop.families import FAMILIES, random_model
from tests.interop.hugging_face import change_config, ours, tokens


def packed_folder(folder, name, change, quantization):
    """Save a model of transformers with its weights packed, and return it with the weights that they stand for."""
    theirs = random_model(name, 0)
    theirs.save_pretrained(folder)
    weights = load_file(folder / SINGLE)
    packed = change(weights)
    save_file({key: value.contiguous() for key, value in packed.items()}, folder / SINGLE, metadata={"format": "pt"})
    change_config(folder, quantization_config=quantization)
    config_class, model_class, _ = FAMILIES[name]
    del config_class
    import transformers

    plain = folder.with_name("plain")
    theirs.config.save_pretrained(plain)
    save_file({key: value.contiguous() for key, value in weights.items()}, plain / SINGLE, metadata={"format": "pt"})
    return getattr(transformers, model_class).from_pretrained(plain, attn_implementation="eager", dtype=torch.float32)


def to_mxfp4(weights):
    """Pack the experts, and put what they stand for into `weights`."""
    packed = dict(weights)
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = packed.pop(name).shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.full(blocks.shape[:-1], 124, dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        weights[name] = unpack_mxfp4(blocks, scales).float()
    return packed


def to_fp8(weights):
    """Pack all matrices but router, embedding and head, and add a layer that predicts a further token."""
    packed = dict(weights)
    for name, weight in weights.items():
        if weight.ndim == 2 and not name.endswith(("mlp.gate.weight", "embed_tokens.weight", "lm_head.weight")):
            blocks = [-(-size // 8) for size in weight.shape]
            inverse = torch.rand(blocks, generator=torch.Generator().manual_seed(1)) + 0.5
            packed |= {name: weight.to(torch.float8_e4m3fn), f"{name}_scale_inv": inverse}
            weights[name] = unpack_fp8(packed[name], inverse, (8, 8)).float()
    packed["model.layers.4.eh_proj.weight"] = torch.ones(3)
    return packed


PACKED = [
    ("gpt-oss", to_mxfp4, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}),
    ("deepseek v3", to_fp8, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [8, 8]}),
]


@pytest.mark.parametrize(("name", "change", "quantization"), PACKED)
def test_a_packed_folder_computes_what_its_unpacked_weights_do(name, change, quantization, tmp_path, monkeypatch):
    monkeypatch.setitem(families.SIZES, "intermediate_size", 64)  # of whole groups
    theirs = packed_folder(tmp_path / "hf", name, change, quantization)
    import_folder(open_hugging_face(tmp_path / "hf", with_tokenizer=False), tmp_path / "out")
    model = ours(tmp_path / "out").float()
    torch.testing.assert_close(model(tokens()), theirs(tokens()).logits, atol=5e-6, rtol=5e-6)


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
