"""Sound inputs of every reader of foreign files, each written into a folder."""

import bz2
import gzip
import json
import lzma
import pickle
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from lmtrain.data.external_formats import MEGATRON_BEGIN, MEGATRON_HEADER
from lmtrain.data.packing_index import PackingReport
from lmtrain.parallel.shard_reading import METADATA
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial
from tests import tiny
from tests.data.documents import make_dataset
from tests.evaluation.bundles import write_bundle


def hugging_face(folder: Path) -> None:
    """Write a Llama of transformers' layout, with its tokenizer, in two shards."""
    width, rows = 8, 300
    names = {"model.embed_tokens.weight": (rows, width), "model.norm.weight": (width,), "lm_head.weight": (rows, width)}
    layer = {"input_layernorm": (width,), "post_attention_layernorm": (width,), "mlp.down_proj": (width, 16)}
    layer |= {f"self_attn.{one}_proj": (width, width) for one in "qkvo"}
    layer |= {f"mlp.{one}_proj": (16, width) for one in ("gate", "up")}
    names |= {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
    tensors = {name: torch.zeros(shape) for name, shape in names.items()}
    first, *rest = tensors
    save_file({first: tensors[first]}, folder / "a.safetensors")
    save_file({name: tensors[name] for name in rest}, folder / "b.safetensors")
    places = {name: "a.safetensors" if name == first else "b.safetensors" for name in tensors}
    _json(folder / "model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": places})
    _json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": rows, "head_dim": 4,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
        "layer_types": ["full_attention"], "sliding_window": None, "attention_bias": False, "dtype": "float32",
    })  # fmt: skip
    _tokenizer(folder)


def _tokenizer(folder: Path) -> None:
    ByteLevelTokenizer(vocab_size=300).save(folder)
    (folder / "tokenizer.meta.json").unlink()
    _json(folder / "tokenizer_config.json", {
        "eos_token": {"content": "<|end_of_text|>"}, "bos_token": "<|end_of_text|>", "add_bos_token": True,
        "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
    })  # fmt: skip
    _json(folder / "generation_config.json", {"eos_token_id": [1, 2], "temperature": 0.5})


def own_tokenizer(folder: Path) -> None:
    """Write a tokenizer of ours."""
    ByteLevelTokenizer(vocab_size=300).save(folder)


def adapter(folder: Path) -> None:
    """Write a LoRA as PEFT does."""
    _json(folder / "adapter_config.json", {
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none", "use_rslora": False,
        "alpha_pattern": {}, "rank_pattern": {},
    })  # fmt: skip
    base = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    factors = {f"{base}A.weight": torch.ones(2, 8), f"{base}B.weight": torch.ones(8, 2)}
    save_file(factors, folder / "adapter_model.safetensors")


def dataset(folder: Path) -> None:
    """Write a prepared data set."""
    make_dataset(folder, [4, 2, 6, 3], shard_tokens=8)


def token_files(folder: Path) -> None:
    """Write other programs' token files: nanoGPT, OLMo, llm.c, Megatron."""
    ids = np.arange(12, dtype="<u2")
    ids.tofile(folder / "nano.bin")
    ids.tofile(folder / "olmo.npy")
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids)
    (folder / "llm_c.bin").write_bytes(header.tobytes() + ids.tobytes())
    ids.tofile(folder / "megatron.bin")
    lengths, starts = np.array([5, 7], "<i4"), np.array([0, 1, 2], "<i8")
    head = MEGATRON_HEADER.pack(MEGATRON_BEGIN, 8, 2, 3)
    offsets = np.array([0, 10], "<i8")
    (folder / "megatron.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + starts.tobytes())


ROWS: Final = ({"text": "one two", "a": 1}, {"text": "three", "a": None}, {"text": "vier", "a": [1]})


TALK: Final = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": []}]


def documents(folder: Path) -> None:
    """Write text and tables, plain and compressed."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "a.jsonl.bz2").write_bytes(bz2.compress(lines))
    (folder / "a.jsonl.xz").write_bytes(lzma.compress(lines))
    with pa.CompressedOutputStream(str(folder / "a.jsonl.zst"), "zstd") as file:
        file.write(lines)
    (folder / "a.csv").write_bytes(b'text,b\n"one, two",1\nthree,2\n')
    pq.write_table(pa.table({"text": ["one", "two", None], "b": [1, 2, 3]}), folder / "a.parquet")
    (folder / "a.txt").write_bytes("ein Text, größer\n\nzwei".encode())
    (folder / "talk.jsonl").write_text(json.dumps({"messages": TALK, "b": 1}) + "\n")


def lines_of_answers(folder: Path) -> None:
    """Write questions, prompts and preference pairs."""
    (folder / "questions.jsonl").write_text(json.dumps({"messages": TALK, "kind": "x"}) + "\n")
    (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    pair = {"prompt": "a", "chosen": [TALK[1]], "rejected": "c"}
    (folder / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    (folder / "messages.json").write_text(
        json.dumps([*TALK, {"role": "user", "content": [{"type": "text", "text": "a"}]}])
    )
    call = {"name": "calculator", "arguments": {"expression": "1"}}
    (folder / "call.json").write_text(json.dumps(call))


def bundle(folder: Path) -> None:
    """Write a bundle of CORE."""
    write_bundle(folder)


def checkpoint(folder: Path) -> None:
    """Write a whole checkpoint of one file, and a sharded one's metadata."""
    import torch.distributed.checkpoint as sharded_checkpoint

    from lmtrain.storage.hashed_folder import write_atomically

    def write(aside: Path) -> None:
        torch.save({"state_dict": {"w": torch.zeros(3)}, "optimizer_states": [{"a": {"b": 1}}]}, aside / "state.pt")

    write_atomically(folder / "step_00000001", facts={"step": 1, "tokens": 8, "identity": {}}, write=write)
    sharded_checkpoint.save({"w": torch.zeros(3), "x": 1}, checkpoint_id=folder / "sharded", no_dist=True)
    with (folder / "sharded" / METADATA).open("rb") as file:
        assert pickle.load(file)


def imported(folder: Path) -> None:
    """Write the notes of an imported model."""
    (folder / "weights").mkdir()
    settings = {"_target_": "lmtrain.models.llama.Llama", "width": 8, "num_heads": 2, "rope_scaling": {"factor": 8.0}}
    _json(folder / "import.json", {"source": "x", "settings": settings})


def packing(folder: Path) -> None:
    """Write the description of a packing."""
    fields = dict.fromkeys(PackingReport.__dataclass_fields__, 1)
    (folder / "p").mkdir()
    _json(folder / "p" / "index.json", fields)


def run(folder: Path) -> None:
    """Train for a moment."""
    done = tiny.train(folder, "budget.steps=2", "run.name=a")
    assert done.returncode == 0, done.stderr
    (folder / "runs/a/metrics.jsonl").write_bytes((folder / "runs/a/metrics.jsonl").read_bytes()[:20_000])


def sweep(folder: Path) -> None:
    """Write the file of a sweep."""
    trial = SweepTrial(number=0, values={"lr": "0.1"}, runs=[SweepRun(seed=1, folder="a")])
    SweepFile(name="a", kind="grid", metric="m", fingerprint="f", command="c", trials=[trial]).save(folder)


def _json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))
