"""The reference is PEFT: it loads what is written over the exported base, and computes alike."""

import json

import pytest
import torch

from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import adapters_of
from lmtrain.interop.imported import read_facts
from lmtrain.interop.peft_export import export_peft
from lmtrain.interop.peft_import import fill_adapters, open_peft
from tests.adapters.test_low_rank import moved
from tests.interop.hugging_face import imported, ours, saved, tokens


def exported(tmp_path, name, adapter):
    """Return transformers' model and our adapted one, whose adapter is at OUT."""
    theirs = saved(name, tmp_path / "hf")
    model = moved(adapter.attach(imported(tmp_path / "hf", tmp_path / "in"), seed=0))
    export_peft(model, adapter, settings=read_facts(tmp_path / "in")["settings"], out=tmp_path / "out", base="hf")
    return theirs, model


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("llama", Lora(rank=3, alpha=6)),
        ("qwen3", Lora(rank=4, alpha=8, rank_stabilized=True, targets=["qkv", "down"])),
        ("gpt2", Lora(rank=2, alpha=4, rank_stabilized=True, targets=["qkv", "output", "up"])),
    ],
)
def test_peft_computes_the_same_with_our_adapter(tmp_path, name: str, adapter: Lora) -> None:
    from peft import PeftModel

    theirs, model = exported(tmp_path, name, adapter)
    with torch.no_grad():
        plain = theirs(tokens()).logits
        both = PeftModel.from_pretrained(theirs, tmp_path / "out").eval()(tokens()).logits
        torch.testing.assert_close(model(tokens()), both, atol=1e-4, rtol=1e-4)  # fp32, as the models without adapters
    assert not torch.allclose(plain, both, atol=1e-2)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_our_own_adapter_comes_back_to_the_bit(tmp_path, name: str) -> None:
    adapter = Lora(rank=2, alpha=4)
    _, model = exported(tmp_path, name, adapter)
    back = adapter.attach(ours(tmp_path / "in"), seed=9)
    fill_adapters(back, open_peft(tmp_path / "out"))
    for (_, one), (_, other) in zip(adapters_of(model), adapters_of(back), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_short_names_stand_where_they_mean_the_adapted_layers_alone(tmp_path) -> None:
    exported(tmp_path, "gpt2", Lora(rank=2, alpha=4, targets=["output"]))  # c_proj is a name of the feed-forward too
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["transformer.h.0.attn.c_proj", "transformer.h.1.attn.c_proj"]
