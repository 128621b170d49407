"""The reference is PEFT: its adapters change our model as they change transformers', and it loads ours."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import adapters_of
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.interop.hf_import import read_facts
from lmtrain.interop.peft_adapters import add_changes, export_peft, fill_adapters, import_merged, open_peft
from lmtrain.run.stored_runs.exported_models import model_to_export
from tests.adapters.test_low_rank import moved
from tests.interop.hugging_face import imported, ours, saved, tokens


@pytest.fixture(name="made")
def made_by_peft(tmp_path):
    """Save a random adapter of PEFT on queries and values, with a rank and alpha of its own for values."""
    from peft import LoraConfig, get_peft_model

    base = saved("llama", tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "in")
    config = LoraConfig(
        r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    torch.manual_seed(5)
    model = get_peft_model(base, config).eval()
    model.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        return tmp_path, model(tokens()).logits


def test_its_changes_are_added_to_the_weights_or_trained_on(made) -> None:
    folder, logits = made
    merged, start = ours(folder / "in"), open_peft(folder / "adapter")
    add_changes(merged, start)
    adapted = Lora(rank=2, alpha=4).attach(ours(folder / "in"), seed=0)  # another scale: the factors take it up
    fill_adapters(adapted, start)
    with torch.no_grad():
        for model in (merged, adapted):
            torch.testing.assert_close(model(tokens()), logits, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(ours(folder / "in")(tokens()), logits, atol=1e-2)


def test_what_is_no_plain_lora_of_this_model_is_refused(made) -> None:
    folder, _ = made
    start = open_peft(folder / "adapter")
    with pytest.raises(
        ConfigurationError, match=r"adapter.rank=4, and adapter.start=.* has rank 2; give adapter.rank=2"
    ):
        start.require(Lora(rank=4, alpha=8))
    with pytest.raises(DataError, match=r"adapts model.layers.0.self_attn.q_proj .* has no adapter here"):
        fill_adapters(Lora(rank=2, alpha=4, targets=["down"]).attach(ours(folder / "in"), seed=0), start)
    strange = replace(start, factors={"model.layers.7.mlp": next(iter(start.factors.values()))})
    with pytest.raises(DataError, match=r"adapts model.layers.7.mlp, no layer of the base"):
        add_changes(ours(folder / "in"), strange)
    with pytest.raises(ConfigurationError, match=r"has no adapter_config.json; name a folder of PEFT"):
        open_peft(folder)
    path = folder / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": True}))
    with pytest.raises(DataError, match=r"use_dora=True is not supported; only plain LoRA"):
        open_peft(folder / "adapter")


@pytest.mark.parametrize(
    ("setting", "value", "is_plain"),
    [
        ("init_lora_weights", "pissa_niter_4", False),
        ("init_lora_weights", "gaussian", True),
        ("alora_invocation_tokens", [1, 2], False),
        ("alpha_pattern", {r"layers\.0\.mlp\.up_proj": 64}, True),
        ("alpha_pattern", ["up_proj"], False),
        ("alpha_pattern", {"layers.[01].mlp.(up|down)_proj": 64}, False),
    ],
)
def test_a_setting_that_changes_the_base_or_the_tokens_adapted_is_refused(tmp_path, setting, value, is_plain) -> None:
    names = [f"base_model.model.model.layers.0.mlp.up_proj.lora_{factor}.weight" for factor in "AB"]
    save_file({name: torch.ones(1, 1) for name in names}, tmp_path / "adapter_model.safetensors")
    config = {"r": 1, "lora_alpha": 1, "peft_type": "LORA", setting: value}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with nullcontext() if is_plain else pytest.raises(DataError, match=rf"{setting}=.* is not supported"):
        opened = open_peft(tmp_path)
        assert opened.config["alpha_pattern"] in ({}, {"layers.0.mlp.up_proj": 64})


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


def test_a_merged_folder_computes_what_peft_does_and_is_never_overwritten(made) -> None:
    folder, logits = made
    base, adapter = model_to_export(folder / "in"), open_peft(folder / "adapter")
    assert import_merged(base, adapter, folder / "merged") == 4
    with torch.no_grad():
        torch.testing.assert_close(ours(folder / "merged")(tokens()), logits, atol=1e-4, rtol=1e-4)  # fp32
    assert model_to_export(folder / "merged").tokenizer is not None
    before, after = (folder / name / "original/config.json" for name in ("in", "merged"))
    assert after.read_bytes() == before.read_bytes(), "the ends of a text may stand there alone"
    with pytest.raises(ConfigurationError, match="is there already"):
        import_merged(base, adapter, folder / "merged")
