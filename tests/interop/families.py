"""Small random models of the classes of transformers that we import: drawn settings, and weights that matter."""

import random
import re

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.interop.hugging_face import LLAMA, built

RECURRENT = re.compile(r"GatedDeltaNet|ShortConv|Mamba2Mixer")
SIZES = {**LLAMA, "num_hidden_layers": 4}


def plain_rope(draw):
    return {"rope_type": "default", "rope_theta": draw.choice([100.0, 10_000.0])}


def scaled_rope(draw):
    """Draw any kind of rotation for heads of 8, with texts on both sides of the original context."""
    original = draw.choice([16, 32])
    kinds = [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},  # of a context of 32: SIZES
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": original},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}
        | draw.choice(
            [
                {},
                {"attention_factor": 1.3},
                {"beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
                {"mscale": 0.7, "mscale_all_dim": 0.4},
            ]
        ),
    ]
    return plain_rope(draw) | draw.choice(kinds)


def any_rope(draw):
    return draw.choice([plain_rope, scaled_rope])(draw)


def attention_biases(draw):
    return {"attention_bias": draw.random() < 0.5}


def windows(draw, *, some=True):
    """Draw a window, and which layers have it."""
    kinds = ["sliding_attention", "full_attention"]
    listed = draw.choice([None, [draw.choice(kinds) for _ in range(3)] + ["sliding_attention"]])
    return {"sliding_window": draw.choice([3, 6])} | ({"layer_types": listed} if some and listed else {})


def llama(draw):
    return {"rope_parameters": any_rope(draw), "mlp_bias": draw.random() < 0.5} | attention_biases(draw)


def qwen2(draw):
    uses = draw.random() < 0.5
    own = {"use_sliding_window": uses, "max_window_layers": 2}
    return {"rope_parameters": any_rope(draw), **own, **windows(draw, some=uses)}


def smollm3(draw):
    own = {"no_rope_layer_interval": draw.choice([2, 4]), "use_sliding_window": draw.random() < 0.5}
    return {"rope_parameters": any_rope(draw), **own, **windows(draw, some=False), **attention_biases(draw)}


def olmo2(draw):
    return {"rope_parameters": any_rope(draw), **attention_biases(draw)}


def by_layer(draw):
    kinds = {"full_attention": scaled_rope(draw), "sliding_attention": {"rope_type": "default"}}
    kinds["sliding_attention"]["rope_theta"] = draw.choice([50.0, kinds["full_attention"]["rope_theta"]])
    return draw.choice([{"rope_parameters": kinds}, {}])


def olmo3(draw):
    return {**by_layer(draw), **windows(draw), **attention_biases(draw)}


def granite(draw):
    multipliers = {"embedding_multiplier": 6.0, "residual_multiplier": 0.4, "logits_scaling": 3.0}
    return {"attention_multiplier": draw.uniform(0.2, 0.5), **multipliers, **llama(draw)}


def granitemoehybrid(draw):
    dense = {"num_local_experts": 0, "layer_types": ["attention"] * 4, "shared_intermediate_size": 48}
    kind = {"position_embedding_type": draw.choice(["rope", None]), "mamba_n_heads": 16, "intermediate_size": 8}
    own = granite(draw)
    del own["mlp_bias"]
    return own | dense | kind


def gemma2(draw):
    own = {"query_pre_attn_scalar": draw.choice([5, 16]), "head_dim": draw.choice([8, 16])}
    caps = {"final_logit_softcapping": draw.choice([2.0, None]), "attn_logit_softcapping": draw.choice([1.5, None])}
    return {"rope_parameters": any_rope(draw), **own, **caps, **windows(draw), **attention_biases(draw)}


def gemma3(draw):
    own = {"query_pre_attn_scalar": draw.choice([5, 16]), "head_dim": draw.choice([8, 16])}
    return {**by_layer(draw), **own, **windows(draw), **attention_biases(draw), "final_logit_softcapping": 3.0}


def glm4(draw):
    rope = plain_rope(draw) | {"partial_rotary_factor": draw.choice([0.5, 1.0])}
    return {"rope_parameters": rope, "head_dim": draw.choice([8, 16]), **attention_biases(draw)}


def phi3(draw):
    share = draw.choice([0.5, 1.0])
    pairs = int(8 * share) // 2
    factors = {f"{kind}_factor": [draw.uniform(1, 4) for _ in range(pairs)] for kind in ("short", "long")}
    rope = plain_rope(draw) | draw.choice([{}, {"rope_type": "longrope", **factors}])
    original = {"original_max_position_embeddings": draw.choice([16, 32])}
    return {"rope_parameters": rope | {"partial_rotary_factor": share}, **original} | draw.choice(
        [{}, windows(draw, some=False)]
    )


def mistral(draw):
    return {"rope_parameters": any_rope(draw), "head_dim": 16, "sliding_window": draw.choice([5, None])}


def experts(draw, count="num_experts"):
    return {count: draw.choice([4, 6]), "num_experts_per_tok": draw.choice([1, 2, 3])}


def mixtral(draw):
    own = {"sliding_window": draw.choice([5, None]), "head_dim": draw.choice([8, 16])}
    return {"rope_parameters": any_rope(draw), **own} | experts(draw, "num_local_experts")


def olmoe(draw):
    return {"rope_parameters": any_rope(draw), "norm_topk_prob": draw.random() < 0.5} | experts(draw)


def qwen3_moe(draw):
    sparse = draw.choice([{}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [0, 3]}])
    own = {"head_dim": draw.choice([8, 16]), "moe_intermediate_size": 24, **sparse, **attention_biases(draw)}
    return olmoe(draw) | own


def qwen2_moe(draw):
    own = {"qkv_bias": draw.random() < 0.5, "shared_expert_intermediate_size": 40, "use_sliding_window": True}
    del (both := qwen3_moe(draw))["head_dim"], both["attention_bias"]
    return both | own | windows(draw)


def granitemoe(draw):
    del (own := granite(draw))["mlp_bias"]
    return own | experts(draw, "num_local_experts")


def gpt_oss(draw):
    own = {"head_dim": draw.choice([8, 16]), "attention_bias": draw.random() < 0.7, "swiglu_limit": 0.5}
    return {"rope_parameters": any_rope(draw), **own, **windows(draw)} | experts(draw, "num_local_experts")


def deepseek(draw):
    latent = {"q_lora_rank": draw.choice([None, 12]), "kv_lora_rank": draw.choice([8, 16]), "qk_nope_head_dim": 8}
    latent |= {"qk_rope_head_dim": 4, "v_head_dim": draw.choice([8, 16]), "num_key_value_heads": 4}
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    rope |= draw.choice([{}, {"mscale": 0.7, "mscale_all_dim": 0.4}, {"mscale_all_dim": 0.9}])
    groups = draw.choice([{"n_group": 1, "topk_group": 1}, {"n_group": 3, "topk_group": 2}])
    own = {"routed_scaling_factor": 1.5, "n_shared_experts": draw.choice([1, 2]), "moe_intermediate_size": 24}
    own |= {"first_k_dense_replace": draw.choice([0, 1]), "n_routed_experts": 6, "num_experts_per_tok": 2}
    return {"rope_parameters": draw.choice([plain_rope(draw), plain_rope(draw) | rope])} | latent | groups | own


def deepseek_v2(draw):
    return deepseek(draw) | {"topk_method": draw.choice(["greedy", "group_limited_greedy"])}


def deepseek_v3(draw):
    return deepseek(draw) | {"norm_topk_prob": draw.random() < 0.5, "rope_interleave": draw.random() < 0.5}


def qwen3_next(draw):
    kinds = ["linear_attention", "full_attention"]
    own = {"layer_types": [draw.choice(kinds), "full_attention", *kinds]}
    own |= {"linear_num_key_heads": 2, "linear_num_value_heads": draw.choice([2, 4]), "linear_key_head_dim": 8}
    own |= {"linear_value_head_dim": draw.choice([8, 16]), "linear_conv_kernel_dim": draw.choice([2, 4])}
    own |= {"shared_expert_intermediate_size": 40}
    rope = plain_rope(draw) | {"partial_rotary_factor": draw.choice([0.25, 0.5])}
    return qwen3_moe(draw) | {"rope_parameters": rope, "head_dim": draw.choice([8, 16])} | own


def lfm2(draw):
    kinds = ["conv", "full_attention"]
    own = {"conv_L_cache": draw.choice([2, 3, 4]), "conv_bias": draw.random() < 0.5, "layer_types": [*kinds, *kinds]}
    own |= draw.choice([{"block_auto_adjust_ff_dim": False}, {"block_multiple_of": 8, "block_ffn_dim_multiplier": 1.3}])
    return {"rope_parameters": plain_rope(draw)} | own


def nemotron_h(draw):
    kinds = ["linear_attention", "mlp", "full_attention", draw.choice(["linear_attention", "mlp"])]
    draw.shuffle(kinds)
    own = {"layers_block_type": kinds, "head_dim": draw.choice([8, 16]), "tie_word_embeddings": False}
    own |= {"mamba_num_heads": draw.choice([4, 8]), "mamba_head_dim": draw.choice([4, 8]), "ssm_state_size": 16}
    own |= {"n_groups": draw.choice([1, 2, 4]), "conv_kernel": draw.choice([2, 4]), "chunk_size": 8}
    own |= {name: draw.random() < 0.5 for name in ("use_conv_bias", "use_bias", "mlp_bias")}
    return own


# what a person calls it: (class of the config, class of the model, settings drawn by a random.Random)
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", llama),
    "mistral": ("MistralConfig", "MistralForCausalLM", mistral),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", qwen2),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", smollm3),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", olmo2),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", olmo3),
    "granite": ("GraniteConfig", "GraniteForCausalLM", granite),
    "granite 4 dense": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", granitemoehybrid),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", gemma2),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", gemma3),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", glm4),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", phi3),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", mixtral),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", olmoe),
    "qwen3 moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", qwen3_moe),
    "qwen2 moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", qwen2_moe),
    "gpt-oss": ("GptOssConfig", "GptOssForCausalLM", gpt_oss),
    "deepseek v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM", deepseek_v2),
    "deepseek v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", deepseek_v3),
    "qwen3 next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", qwen3_next),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", lfm2),
    "nemotron-h": ("NemotronHConfig", "NemotronHForCausalLM", nemotron_h),
    "granite moe": ("GraniteMoeConfig", "GraniteMoeForCausalLM", granitemoe),
}


def random_model(name, seed, **changes):
    """Return a model of transformers with drawn settings, some changed, and weights, norms and biases included."""
    config_class, model_class, draw_own = FAMILIES[name]
    draw = random.Random(f"{name} {seed}")
    tied = {"tie_word_embeddings": draw.random() < 0.5, "num_key_value_heads": draw.choice([1, 2, 4])}
    settings = SIZES | tied | draw_own(draw) | changes
    if "dynamic" in str(settings):
        settings["max_position_embeddings"] = 32  # texts are longer
    model = built(config_class, model_class, settings, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.shape[0] == model.config.vocab_size:
                parameter.mul_(1 / model.config.hidden_size**0.5)  # embeddings multiplied by as much stay of this order
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    return model


def counted_products(model, run):
    """Return the FLOPs of a run's products by torch, without positions and states: ours count those by token."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    counted = {name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()}
    of_positions = sum(flops for name, flops in counted.items() if name.endswith("rotary_emb"))
    within = [f".{name}" for name, module in model.named_modules() if RECURRENT.search(type(module).__name__)]
    of_states = sum(flops for name, flops in counted.items() if name.endswith(tuple(within)))
    of_states -= sum(flops for name, flops in counted.items() if name.rpartition(".")[0].endswith(tuple(within)))
    return counted["Global"] - of_positions - of_states


def saved_parameters(model, get):
    """Return `get` of every parameter of a model of transformers by its names in a file."""
    found = {}
    for name, parameter in model.named_parameters():
        value, (place, _, last) = get(parameter), name.rpartition(".")
        if parameter.ndim != 3 or last not in ("gate_up_proj", "down_proj") or model.config.model_type in STACKED:
            found[RENAMED.get(model.config.model_type, str)(name)] = value
            continue
        parts = [value[:, : value.shape[1] // 2], value[:, value.shape[1] // 2 :]] if "up" in last else [value]
        of_mixtral = model.config.model_type == "mixtral"
        place = place.replace(".mlp.", ".block_sparse_moe.") if of_mixtral else place
        ends = (
            (["w1", "w3"] if "up" in last else ["w2"])
            if of_mixtral
            else (["gate_proj", "up_proj"] if "up" in last else [last])
        )
        for end, part in zip(ends, parts, strict=True):
            found |= {f"{place}.{expert}.{end}.weight": one for expert, one in enumerate(part)}
    return found


def granite_names(name):
    for ours, theirs in (("experts.gate_up_proj", "input_linear"), ("experts.down_proj", "output_linear")):
        name = name.replace(ours, f"{theirs}.weight")
    return name.replace("router.weight", "router.layer.weight")


STACKED = ("granitemoe", "gpt_oss")
RENAMED = {
    "nemotron_h": lambda name: name.replace("model.", "backbone."),
    "granitemoe": granite_names,
    "mixtral": lambda name: name.replace(".mlp.gate.", ".block_sparse_moe.gate."),
}
