"""Small random models of transformers, saved the way a person would, with a byte-level tokenizer beside them."""

import json

import torch
from safetensors.torch import load_file, save_file

from lmtrain.interop.hf_import import fill_from, import_folder, open_hugging_face, open_weights, read_facts, require_fit
from lmtrain.interop.model_settings import build
from lmtrain.interop.tokenizer_files import write_tokenizer
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

VOCAB = 288
LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
MIXED_LAYERS = {
    "use_sliding_window": True,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"],
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
# what a person calls it: (class of the config, class of the model, settings)
MODELS = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "gpt2, exact gelu": ("GPT2Config", "GPT2LMHeadModel", GPT2 | {"activation_function": "gelu"}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "llama tied, one kv head": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "num_key_value_heads": 1},
    ),
    "llama 3 rope": ("LlamaConfig", "LlamaForCausalLM", {"rope_parameters": LLAMA_3_ROPE}),
    "llama linear rope": ("LlamaConfig", "LlamaForCausalLM", {"rope_parameters": LINEAR_ROPE}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16}),
    "qwen3 windows": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 8, **MIXED_LAYERS}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 7}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
}


def random_model(name, *, dtype=torch.float32, seed=0, **settings):
    """Return one of MODELS."""
    config_class, model_class, own = MODELS[name]
    shared = {"vocab_size": VOCAB, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 256}
    settings = (shared if name.startswith("gpt2") else LLAMA) | own | settings
    return built(config_class, model_class, settings, seed=seed).to(dtype)


def built(config_class, model_class, settings, *, seed):
    """Return a model of transformers with random weights, norms and biases included."""
    import transformers

    config = getattr(transformers, config_class)(**settings)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def saved(name, folder, *, tokenizer=True, max_shard_size="5GB", **settings):
    """Save a random model and return it."""
    model = random_model(name, **settings)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    if tokenizer:
        write_tokenizer(ByteLevelTokenizer(vocab_size=257), folder, max_context_tokens=64)
    return model


def imported(folder, out):
    """Import a folder and return our model with its weights."""
    import_folder(open_hugging_face(folder), out)
    return ours(out)


def ours(out):
    """Return our model with the weights of an imported folder."""
    model = build(read_facts(out)["settings"])
    files = open_weights(out)
    require_fit(model, files)
    model.to_empty(device="cpu")
    model.initialize_weights(torch.Generator().manual_seed(1))
    fill_from(model, files)
    return model


def change_config(folder, **changes):
    """Change keys of a saved config.json; None removes one."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def change_weights(folder, change):
    """Let a function change the dict of weights of a folder with one file."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def weights_of(folder):
    """Return all weights of a folder by name."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def tokens(num=24):
    """Return ids [2, num]."""
    return torch.randint(257, (2, num), generator=torch.Generator().manual_seed(3))
