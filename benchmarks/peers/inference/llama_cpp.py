"""llama.cpp on an exported folder's own weights in fp32, by its server in this process (pip install xllamacpp gguf).

Its own converter knows published tokenizers alone, so the file is written here, for prompts of token ids.
"""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def save_gguf(folder: Path, out: Path) -> Path:
    """Write the Llama of an exported folder as a GGUF file without a tokenizer's rules."""
    import gguf  # pyright: ignore[reportMissingImports]

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{index}" for index in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["t 0"])
    for name, weight in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_name(name), _rotated_pairwise(name, weight, config).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def _rotated_pairwise(name: str, weight: NDArray[Any], config: dict[str, Any]) -> NDArray[Any]:
    """Put queries' and keys' rows in llama.cpp's order: rotary pairs side by side, not a half apart."""
    if "q_proj" not in name and "k_proj" not in name:
        return weight
    half = config["head_dim"] // 2
    return weight.reshape(-1, 2, half, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def load(model: Path, *, num_texts: int, context_tokens: int, num_threads: int) -> Any:
    """Return a server that writes so many texts at once."""
    import xllamacpp  # pyright: ignore[reportMissingImports]

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel = num_texts
    params.n_ctx = num_texts * context_tokens
    params.n_gpu_layers = 0
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.n_batch = params.n_ubatch = 512
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = num_threads
        threads.poll = 0  # no waiting by computing
    params.endpoint_metrics = False
    params.verbosity = -1
    return xllamacpp.Server(params)


def write(server: Any, prompts: torch.Tensor, num_new_tokens: int) -> tuple[torch.Tensor, float]:
    """Return the tokens [B, T], greedy, and the CPU seconds they took."""
    began = time.process_time()

    def ask(prompt: Sequence[int]) -> list[int]:
        body = {"prompt": prompt, "n_predict": num_new_tokens, "temperature": 0.0, "samplers": ["temperature"]}
        more = {"ignore_eos": True, "cache_prompt": False, "stream": False}
        text = server.handle_completions({**body, **more})["choices"][0]["text"]
        return [int(number) for number in text.split("t")[1:]]  # tokens are called t0, t1, ...

    with ThreadPoolExecutor(len(prompts)) as pool:
        written = list(pool.map(ask, prompts.tolist()))
    return torch.tensor(written), time.process_time() - began
