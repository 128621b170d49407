"""llama.cpp on an exported folder's own weights in fp32, by its server in this process (pip install xllamacpp gguf).

Settings and tensors are those of `lmtrain export gguf`; tokens are named by their ids, for prompts and answers of ids.
"""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from lmtrain.interop.gguf_file import KINDS, add_settings, named_tensors


def save_gguf(folder: Path, out: Path) -> Path:
    """Write an exported folder as a GGUF file without a tokenizer's rules."""
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(out, KINDS[config["model_type"]].name)
    add_settings(writer, config, name=folder.name)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{index}" for index in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["t 0"])
    for name, values in named_tensors(folder, config):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


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
