"""Pairs of models with the same weights: one of ours, and the class of transformers that its exported config names."""

from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from lmtrain.interop.hf_export import export_config
from lmtrain.interop.model_settings import node_of
from lmtrain.interop.tensor_map import map_tensors
from lmtrain.models.attention.eager import eager
from lmtrain.models.base import LanguageModel
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.rope import LinearRopeScaling, RopeScaling

GPT2_TINY: dict[str, Any] = {"width": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 101, "max_context_tokens": 64}
LLAMA_TINY: dict[str, Any] = GPT2_TINY | {"feed_forward_width": 96, "num_kv_heads": 2, "init_std": 0.1}
# Stretches some of a small model's rotations, keeps some and blends some, as Llama 3's does with 8,192 tokens.
SMALL_SCALING = RopeScaling(factor=8.0, original_context_tokens=64)
MODELS: dict[str, tuple[type[LanguageModel], dict[str, Any]]] = {
    "GPT-2": (GPT2, GPT2_TINY | {"init_std": 0.1}),
    "GPT-2, narrow feed-forward": (GPT2, GPT2_TINY | {"init_std": 0.1, "num_layers": 3, "feed_forward_width": 80}),
    "Llama 2": (Llama, LLAMA_TINY | {"num_kv_heads": None, "rope_base": 10_000.0}),
    "Llama 3": (Llama, LLAMA_TINY),
    "Llama 3.2, tied, stretched": (Llama, LLAMA_TINY | {"tie_embeddings": True, "rope_scaling": SMALL_SCALING}),
    "Llama, linearly stretched": (Llama, LLAMA_TINY | {"rope_scaling": LinearRopeScaling(factor=4.0)}),
    "Qwen 3": (Llama, LLAMA_TINY | {"qk_norm": True, "head_width": 32, "norm_eps": 1e-6, "rope_base": 1e6}),
    "Qwen 3, a window of 9 in every second layer": (
        Llama,
        LLAMA_TINY | {"qk_norm": True, "norm_eps": 1e-6, "window_tokens": 9, "window_pattern": "SL"},
    ),
    "Mistral, window of 9": (Llama, LLAMA_TINY | {"window_tokens": 9, "rope_base": 10_000.0}),
    "Mixtral, 2 of 4 experts": (
        Llama,
        LLAMA_TINY | {"experts": Experts(num_experts=4, num_experts_per_token=2), "rope_base": 1e6},
    ),
    "OLMoE, 2 of 4 experts": (
        Llama,
        LLAMA_TINY
        | {"experts": Experts(num_experts=4, num_experts_per_token=2, normalize_weights=False)}
        | {"qk_norm": True, "qk_norm_over": "width"},
    ),
    "Qwen 3 MoE, 2 of 4 experts": (
        Llama,
        LLAMA_TINY | {"experts": Experts(num_experts=4, num_experts_per_token=2), "qk_norm": True, "norm_eps": 1e-6},
    ),
}


def ours(kind: type[LanguageModel], options: dict[str, Any], **settings: Any) -> LanguageModel:
    """Build and fill a model of ours; weights of norms, and biases, are moved off their 1 and 0."""
    model = kind(**options, **({"attention": eager} | settings))
    generator = torch.Generator().manual_seed(0)
    model.initialize_weights(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def theirs(model: LanguageModel, options: dict[str, Any], *, attention: str = "eager") -> nn.Module:
    """Build the class of transformers for a model of ours, with a copy of its weights."""
    config = export_config(settings(type(model), options))
    reference = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            **config | {"pad_token_id": None}
        ),  # OLMoE's is 1 by default, whose row learns nothing there
        attn_implementation=attention,
        dtype=torch.float32,
    )
    wanted = reference.state_dict()
    given = fused(parts_of(model, config["model_type"], dict(model.state_dict())))
    missing, unexpected = reference.load_state_dict(given, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}, missing  # tied
    assert all(given[name].shape == wanted[name].shape for name in given)
    return reference.train()


def settings(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """Word a model's options as a config would."""
    nodes = {name: node_of(type(value), **asdict(value)) for name, value in options.items() if is_dataclass(value)}
    return node_of(kind, **(options | nodes))


def model_type_of(kind: type, options: dict[str, Any]) -> str:
    """Return the word by which transformers knows a model."""
    return export_config(settings(kind, options))["model_type"]


def parts_of(model: LanguageModel, model_type: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cut tensors with the names and shapes of our parameters into those of transformers' files."""
    return {
        part.name: part.of(tensors[mapped.name]).contiguous()
        for mapped in map_tensors(model, model_type)
        for part in mapped.parts
    }


# Where a layer's experts stand in files, and their gate, up and down: Mixtral's words, and everybody else's.
EXPERTS_IN_FILES = {".block_sparse_moe": ("w1", "w3", "w2"), ".mlp": ("gate_proj", "up_proj", "down_proj")}


def fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Stack experts as transformers 5 holds them in memory; in files each is its own."""
    kept = dict(tensors)
    for place, words in EXPERTS_IN_FILES.items():
        for layer in {name.split(f"{place}.experts.")[0] for name in tensors if f"{place}.experts." in name}:
            inside = f"{layer}{place}"
            experts = range(sum(name.startswith(f"{inside}.experts.") for name in tensors) // 3)
            gate, up, down = (
                torch.stack([kept.pop(f"{inside}.experts.{expert}.{word}.weight") for expert in experts])
                for word in words
            )
            kept[f"{layer}.mlp.gate.weight"] = kept.pop(f"{inside}.gate.weight")
            kept[f"{layer}.mlp.experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
            kept[f"{layer}.mlp.experts.down_proj"] = down
    return kept
