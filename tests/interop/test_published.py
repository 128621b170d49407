"""Published models: the class of transformers that each is, and the counts of parameters and of FLOPs there."""

import re
from dataclasses import replace

import pytest
import torch

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.interop.hf_config import write_config
from lmtrain.interop.model_settings import build, complete
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.paths import conf_folder
from tests.interop.families import counted_products

FILES = sorted((conf_folder() / "model").glob("*.yaml"))
COUNTS = {
    file.stem: int(found[1].replace(",", ""))
    for file in FILES
    if (found := re.match(r"# .* as published.*?, ([\d,]+) parameters", file.read_text()))
}
MANY_PARTS = (
    "deepseek",
    "gpt_oss",
    "granite_moe",
    "lfm2",
    "mixtral_8x7b",
    "olmoe",
    "qwen_3_30b",
    "qwen_3_235b",
    "qwen_3_next",
)
CLASSES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gemma_2": "Gemma2ForCausalLM",
    "gemma_3": "Gemma3ForCausalLM",
    "glm_4": "Glm4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral_small": "LlamaForCausalLM",  # without a window a Mistral is a Llama, to the name of each tensor
    "nemotron_h": "NemotronHForCausalLM",
    "olmo_2": "Olmo2ForCausalLM",
    "olmo_3": "Olmo3ForCausalLM",
    "phi_3_5": "LlamaForCausalLM",  # Phi 3's fused matrices apart
    "phi_4_14b": "LlamaForCausalLM",
    "phi_4_mini": "Phi3ForCausalLM",
    "qwen_2_5": "Qwen2ForCausalLM",
    "qwen_3": "Qwen3ForCausalLM",
    "qwen_3_235b": "Qwen3MoeForCausalLM",
    "qwen_3_30b": "Qwen3MoeForCausalLM",
    "qwen_3_next": "Qwen3NextForCausalLM",
    "smollm_2": "LlamaForCausalLM",
    "smollm_3": "SmolLM3ForCausalLM",
}


@pytest.mark.parametrize("option", [name for name in COUNTS if name.startswith(tuple(CLASSES))])
def test_a_published_model_has_its_class_and_its_parameters(option):
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = complete(compose_config([f"model={option}"])["model"])
    config = write_config(settings)
    assert config["architectures"] == [CLASSES[max((start for start in CLASSES if option.startswith(start)), key=len)]]
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert theirs.num_parameters() == build(settings).shape().num_parameters == COUNTS[option]


@pytest.mark.parametrize(
    "option",
    [
        pytest.param(file.stem, marks=[] if file.stem.startswith(MANY_PARTS) else [pytest.mark.slow])
        for file in FILES
        if file.stem in COUNTS or file.stem.startswith(MANY_PARTS)
    ],
)
def test_a_published_model_has_the_flops_of_its_class(option):
    """Products of the forward pass as torch counts them in transformers, which gathers each token's experts on meta."""
    from transformers import AutoConfig, AutoModelForCausalLM

    num_tokens = 8
    settings = complete(compose_config([f"model={option}"])["model"])
    config = AutoConfig.for_model(**write_config(settings))
    config._attn_implementation, config._experts_implementation = "eager", "batched_mm"
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config)
        ids = torch.zeros(1, num_tokens, dtype=torch.int64)
        mask = torch.zeros(1, 1, num_tokens, num_tokens)  # made: making one reads values
        products = counted_products(theirs, lambda: theirs(ids, attention_mask=mask, use_cache=False))
    shape = build(settings).shape()
    attending = [layer for layer in shape.attention if layer.state_flops is None]
    whole = replace(shape, attention=tuple(replace(layer, window_tokens=None) for layer in attending))
    expected = num_tokens * flops_per_token(whole, num_tokens).palm
    assert 3 * products == expected
    experts = [module for module in theirs.modules() if type(module).__name__.endswith("Experts")]
    held = sum(parameter.numel() for module in experts for parameter in module.parameters())
    chosen = held * config.num_experts_per_tok // experts[0].num_experts if experts else held
    assert shape.num_active_parameters == theirs.num_parameters() - held + chosen
