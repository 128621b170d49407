"""Every reader of bytes that a stranger may have written: a sound input, the file in it to damage, and the reading.

A new reader of foreign files gets its entry here.
"""

import contextlib
import functools
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from data_pipelines.sources.files import Files
from data_pipelines.sources.preference_pairs import PreferencePairs
from lmtrain.cli import main as cli
from lmtrain.cli.commands.generate import read_prompts
from lmtrain.data.external_formats import READERS
from lmtrain.data.packing_index import build_once, ends_of_shards
from lmtrain.data.shards import open_dataset
from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.evaluation.answers import read_questions
from lmtrain.evaluation.core import read_bundle
from lmtrain.inference.loaded_model import ids_added, ids_of_ends
from lmtrain.interop.hf_import import open_hugging_face
from lmtrain.interop.peft_adapters import open_peft
from lmtrain.interop.safetensors_files import WeightFiles
from lmtrain.parallel.shard_reading import METADATA, read_metadata
from lmtrain.run.compose.start_options import imported_options
from lmtrain.run.stored_runs.job import load_job
from lmtrain.storage.hashed_folder import damage
from lmtrain.storage.plain_values import load_plain
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.conversation import read_call, read_conversation
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tokenizers.templates import read_template
from lmtrain.tracking.run_log import read_points
from lmtrain.tracking.sweep_file import read_sweep
from lmtrain.training.checkpointing.checkpoints import read_facts
from tests.foreign_inputs import (
    adapter,
    bundle,
    checkpoint,
    dataset,
    documents,
    hugging_face,
    imported,
    lines_of_answers,
    own_tokenizer,
    packing,
    run,
    sweep,
    token_files,
)

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


def _read_dataset(folder: Path) -> None:
    from lmtrain.data.dataset_folder import require_whole

    found = open_dataset(folder)
    for split in found.splits.values():
        list(ends_of_shards(split))
        split.window(0, min(split.num_tokens, 8))
    require_whole(found)


def _read_tokens(read: Callable[..., Any], name: str, dtype: str | None) -> Callable[[Path], object]:
    def reading(folder: Path) -> None:
        found = read(folder / name, dtype=dtype, vocab_size=300)
        found.ids().sum()
        if found.read_ends is not None:
            found.read_ends()

    return reading


def _documents(name: str, **settings: Any) -> Callable[[Path], object]:
    def reading(folder: Path) -> None:
        for document in Files(paths=[str(folder / name)], **settings).documents():
            if messages := getattr(document, "messages", None):
                read_conversation(messages)

    return reading


def _read_bundle(folder: Path) -> None:
    for task in read_bundle(folder):
        task.items()


def _verb(*words: str) -> Callable[[Path], object]:
    """Return a call of lmtrain about the run; a refusal is one of its exit codes, and a traceback passes through."""

    def reading(folder: Path) -> None:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.chdir(folder):
            code = cli.serve(words[0], [*words[1:], str(folder / "runs/a")], program="lmtrain")
        assert code in (0, 1, 2, 3, 4), output.getvalue()

    return reading


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
    for form, name in (
        ("nanogpt", "nano.bin"),
        ("olmo", "olmo.npy"),
        ("llm_c", "llm_c.bin"),
        ("megatron", "megatron.idx"),
    ):
        read = _read_tokens(READERS[form], name, "uint16" if form in ("olmo", "nanogpt") else None)
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
    pairs: Callable[[Path], object] = lambda it: list(PreferencePairs(paths=[str(it / "pairs.jsonl")]).documents())  # noqa: E731
    yield Parser("preference pairs", "pairs.jsonl", "lines", lines_of_answers, pairs)
    talk: Callable[[Path], object] = lambda it: _given_json(it / "messages.json", read_conversation)  # noqa: E731
    yield Parser("messages", "messages.json", "json", lines_of_answers, talk)
    call: Callable[[Path], object] = lambda it: read_call((it / "call.json").read_text(errors="replace"))  # noqa: E731
    yield Parser("a tool's call", "call.json", "json", lines_of_answers, call)
    yield Parser("core.yaml", "core.yaml", "bytes", bundle, _read_bundle)
    yield Parser("CORE's baselines", "eval_meta_data.csv", "bytes", bundle, _read_bundle)
    yield Parser("CORE's items", "eval_data/some/choices.jsonl", "lines", bundle, _read_bundle)
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
    shown = (("show",), ("ledger",), ("ls",), ("compare",), ("report",), ("generate", "--num-new-tokens", "1"))
    for file, kind in files.items():
        for words in shown:
            yield Parser(f"{words[0]} of {file}", file, kind, run, _verb(*words))


PARSERS: Final = (*_parsers(),)


RUN_PARSERS: Final = (*_run_parsers(),)
