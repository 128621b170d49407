"""Published models: the class of transformers that each is, and the count of parameters there."""

import re

import pytest
import torch

from lmtrain.interop.hf_config import write_config
from lmtrain.interop.model_settings import build, complete
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.paths import conf_folder

FILES = sorted((conf_folder() / "model").glob("*.yaml"))
COUNTS = {
    file.stem: int(found[1].replace(",", ""))
    for file in FILES
    if (found := re.match(r"# .* as published.*?, ([\d,]+) parameters", file.read_text()))
}
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
