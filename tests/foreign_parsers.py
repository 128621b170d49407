"""Every reader of bytes that a stranger may have written: a sound input, the file in it to damage, and the reading.

A new reader of foreign files gets its entry here.
"""

import bz2
import contextlib
import functools
import gzip
import io
import json
import lzma
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from data_pipelines.sources.files import Files
from data_pipelines.sources.preference_pairs import PreferencePairs
from lmtrain import cli
from lmtrain.composition.command_line.imported_options import imported_options
from lmtrain.composition.stored_runs.job import load_job
from lmtrain.data.formats import llm_c, megatron, nano_gpt, olmo
from lmtrain.data.packing_index import PackingReport, build_once
from lmtrain.data.shards import open_dataset
from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.evaluation.chat_tasks.local_copies import read_rows
from lmtrain.evaluation.core.bundle import read_bundle
from lmtrain.evaluation.question_file import read_questions
from lmtrain.inference.loaded_model import ids_added, ids_of_ends, read_template
from lmtrain.inference.prompt_file import read_prompts, written_so_far
from lmtrain.interop.hf_import import open_hugging_face
from lmtrain.interop.peft_import import open_peft
from lmtrain.interop.safetensors_files import WeightFiles
from lmtrain.parallel.shard_reading import METADATA, read_metadata
from lmtrain.storage.hashed_folder import damage
from lmtrain.storage.plain_values import load_plain
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.conversation import read_call, read_conversation
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tracking.run_log import read_points
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial, read_sweep
from lmtrain.training.checkpointing.checkpoints import read_facts
from tests import tiny
from tests.data.documents import make_dataset
from tests.evaluation.core.bundles import write_bundle

Damage = Literal["bytes", "json", "lines"]


@dataclass(frozen=True)
class Parser:
    """One reader; `make` fills a folder with a sound input, of which `file` is damaged; `read` may raise `refusals`."""

    name: str
    file: str
    damage: Damage
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    refusals: tuple[type[Exception], ...] = LMTRAIN_ERRORS

    def sound(self) -> bytes:
        """Return the sound file's bytes."""
        return made(self.make)[self.file]


@functools.cache
def made(make: Callable[[Path], object]) -> dict[str, bytes]:
    """Return the files of a sound input."""
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        files = [path for path in Path(name).rglob("*") if path.is_file()]
        return {str(path.relative_to(name)): path.read_bytes() for path in files}


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


def _read_dataset(folder: Path) -> None:
    from lmtrain.data.checked_shards import require_whole

    found = open_dataset(folder)
    for split in found.splits.values():
        split.document_ends()
        split.window(0, min(split.num_tokens, 8))
    require_whole(found)


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
    head = megatron.HEADER.pack(megatron.MAGIC, 1, 8, 2, 3)
    offsets = np.array([0, 10], "<i8")
    (folder / "megatron.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + starts.tobytes())


def _read_tokens(read: Callable[..., Any], name: str, dtype: str | None) -> Callable[[Path], object]:
    def reading(folder: Path) -> None:
        found = read(folder / name, dtype=dtype, vocab_size=300)
        found.ids().sum()
        if found.read_ends is not None:
            found.read_ends()

    return reading


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


def _documents(name: str, **settings: Any) -> Callable[[Path], object]:
    def reading(folder: Path) -> None:
        for document in Files(paths=[str(folder / name)], **settings).documents():
            if messages := getattr(document, "messages", None):
                read_conversation(messages)

    return reading


def lines_of_answers(folder: Path) -> None:
    """Write questions, prompts, answers so far, and preference pairs."""
    (folder / "questions.jsonl").write_text(json.dumps({"messages": TALK, "kind": "x"}) + "\n")
    (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (folder / "answers.jsonl").write_text('{"index": 0, "prompt": "a", "text": "c"}\n')
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


def _read_bundle(folder: Path) -> None:
    for task in read_bundle(folder):
        task.items()


def copies(folder: Path) -> None:
    """Write rows of a public data set."""
    rows = [{"question": "Q", "answer": 1}, {"question": "R", "answer": 2}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "test.parquet")
    (folder / "test.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


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


def _verb(*words: str) -> Callable[[Path], object]:
    """Return a call of lmtrain about the run; a refusal is one of its exit codes, and a traceback passes through."""

    def reading(folder: Path) -> None:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.chdir(folder):
            code = cli.serve(words[0], [*words[1:], str(folder / "runs/a")], program="lmtrain")
        assert code in (0, 1, 2, 3, 4), output.getvalue()

    return reading


def sweep(folder: Path) -> None:
    """Write the file of a sweep."""
    trial = SweepTrial(number=0, values={"lr": "0.1"}, runs=[SweepRun(seed=1, folder="a")])
    SweepFile(name="a", kind="grid", metric="m", fingerprint="f", command="c", trials=[trial]).save(folder)


def _json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def _parsers() -> Iterator[Parser]:
    def open_model(folder: Path) -> object:
        return open_hugging_face(folder)

    def every_tensor(folder: Path) -> None:
        files = WeightFiles(folder)
        for name in files.facts:
            files.read(name)

    yield Parser("config.json of transformers", "config.json", "json", hugging_face, open_model)
    yield Parser("index of safetensors", "model.safetensors.index.json", "json", hugging_face, every_tensor)
    yield Parser("safetensors", "a.safetensors", "bytes", hugging_face, every_tensor)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        yield Parser(f"{name} of transformers", name, "json", hugging_face, load_tokenizer)
    for name in ("tokenizer.json", "tokenizer.meta.json"):
        yield Parser(f"our {name}", name, "json", own_tokenizer, load_tokenizer)
    tokenizer = ByteLevelTokenizer(vocab_size=300)
    for name in ("tokenizer_config.json", "generation_config.json", "tokenizer.json"):
        read: Callable[[Path], object] = lambda it: (read_template(it), ids_of_ends(tokenizer, it), ids_added(it))  # noqa: E731
        yield Parser(f"chat settings in {name}", name, "json", hugging_face, read)
    yield Parser("adapter's settings", "adapter_config.json", "json", adapter, open_peft)
    yield Parser("adapter's weights", "adapter_model.safetensors", "bytes", adapter, open_peft)
    yield Parser("import.json", "import.json", "json", imported, lambda it: imported_options({"init_from": str(it)}))
    yield Parser("dataset.json", "dataset.json", "json", dataset, _read_dataset)
    yield Parser("document ends", "train_00000.ds.index", "bytes", dataset, _read_dataset)
    for form, name in ((nano_gpt, "nano.bin"), (olmo, "olmo.npy"), (llm_c, "llm_c.bin"), (megatron, "megatron.idx")):
        read = _read_tokens(form.read, name, "uint16" if form in (olmo, nano_gpt) else None)
        yield Parser(f"tokens in {name}", name, "bytes", token_files, read)
    yield Parser("packing's index", "p/index.json", "json", packing, lambda it: build_once(it / "p", lambda _: None))
    for name in ("a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.xz", "a.jsonl.zst", "a.csv", "a.parquet", "a.txt"):
        yield Parser(f"documents of {name}", name, "bytes", documents, _documents(name))
    yield Parser("documents of JSON lines", "a.jsonl", "lines", documents, _documents("a.jsonl"))
    yield Parser(
        "conversations", "talk.jsonl", "lines", documents, _documents("talk.jsonl", messages_column="messages")
    )
    yield Parser(
        "questions", "questions.jsonl", "lines", lines_of_answers, lambda it: read_questions(it / "questions.jsonl")
    )
    yield Parser("prompts", "prompts.jsonl", "lines", lines_of_answers, lambda it: read_prompts(it / "prompts.jsonl"))
    read = lambda it: written_so_far(it / "answers.jsonl", ["a"])  # noqa: E731
    yield Parser("answers", "answers.jsonl", "lines", lines_of_answers, read)
    pairs: Callable[[Path], object] = lambda it: list(PreferencePairs(paths=[str(it / "pairs.jsonl")]).documents())  # noqa: E731
    yield Parser("preference pairs", "pairs.jsonl", "lines", lines_of_answers, pairs)
    talk: Callable[[Path], object] = lambda it: _given_json(it / "messages.json", read_conversation)  # noqa: E731
    yield Parser("messages", "messages.json", "json", lines_of_answers, talk)
    call: Callable[[Path], object] = lambda it: read_call((it / "call.json").read_text(errors="replace"))  # noqa: E731
    yield Parser("a tool's call", "call.json", "json", lines_of_answers, call)
    yield Parser("core.yaml", "core.yaml", "bytes", bundle, _read_bundle)
    yield Parser("CORE's baselines", "eval_meta_data.csv", "bytes", bundle, _read_bundle)
    yield Parser("CORE's items", "eval_data/some/choices.jsonl", "lines", bundle, _read_bundle)
    for name in ("test.parquet", "test.jsonl.gz"):
        read = lambda it, name=name: read_rows([it / name], {"question": str, "answer": int})  # noqa: E731
        yield Parser(f"rows of {name}", name, "bytes", copies, read)
    step: Callable[[Path], object] = lambda it: (damage(it / "step_00000001"), read_facts(it / "step_00000001"))  # noqa: E731
    yield Parser("checkpoint's manifest", "step_00000001/manifest.json", "json", checkpoint, step)
    read = lambda it: load_plain(it / "step_00000001/state.pt")  # noqa: E731
    yield Parser("torch's file", "step_00000001/state.pt", "bytes", checkpoint, read)
    yield Parser(
        "sharded metadata", f"sharded/{METADATA}", "bytes", checkpoint, lambda it: read_metadata(it / "sharded")
    )
    yield Parser("sweep.json", "sweep.json", "json", sweep, read_sweep)


def _given_json(path: Path, read: Callable[[Any], object]) -> None:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return  # the messages come out of a parser of their own
    read(content)


def _run_parsers() -> Iterator[Parser]:
    job = "runs/a/attempts/1/job.json"
    yield Parser("job.json", job, "json", run, lambda it: load_job(it / job))
    read: Callable[[Path], object] = lambda it: list(read_points(it / "runs/a/metrics.jsonl"))  # noqa: E731
    yield Parser("metrics.jsonl", "runs/a/metrics.jsonl", "lines", run, read)
    files: dict[str, Damage] = {
        job: "json", "runs/a/metrics.jsonl": "lines", "runs/a/events/rank0.jsonl": "lines", "runs/a/plan.json": "json",
        "runs/a/run.json": "json", "runs/a/status.json": "json", "runs/a/dataset.json": "json",
        "runs/a/samples.jsonl": "lines", "runs/a/attempts/1/environment.json": "json",
        "runs/a/attempts/1/devices.json": "json", "runs/a/attempts/1/git.json": "json", "runs/a/config.yaml": "bytes",
        "runs/a/tokenizer/tokenizer.json": "json", "runs/a/tokenizer/tokenizer.meta.json": "json",
        "runs/a/events/rank0.beat": "bytes", "runs/a/attempts/1/versions.json": "json",
    }  # fmt: skip
    for file, kind in files.items():
        for words in (
            ("show",),
            ("ledger",),
            ("ls",),
            ("compare",),
            ("report",),
            ("generate", "--num-new-tokens", "1"),
        ):
            yield Parser(f"{words[0]} of {file}", file, kind, run, _verb(*words))


PARSERS: Final = (*_parsers(),)
RUN_PARSERS: Final = (*_run_parsers(),)
