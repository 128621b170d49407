"""Where the time of `lmtrain prepare` goes: CPU milliseconds a megabyte of prose, stage by stage, on one core.

Every stage is given the whole corpus by itself, in the order of the verb, in one process; the last rows are the encoder
alone and the verb itself on five times as much text, whose further megabytes should cost what the stages add up to.

    python benchmarks/questions/prepare_stages.py [--megabytes 8] [--rounds 3] [--format jsonl|parquet|txt]
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

os.environ.update({"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"})

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.questions.encode import DOCUMENT_CHARACTERS, VOCAB_SIZE, prose
from data_pipelines.prepare import prepare
from data_pipelines.sources.base import Document
from data_pipelines.sources.files import Files
from data_pipelines.stages.append import Shards
from data_pipelines.stages.defaults import default_cleaning, default_deduplication
from data_pipelines.stages.encode import encode_block, load_encoded, save_encoded
from data_pipelines.stages.render import WholeConversations
from data_pipelines.stages.split import HeldOut, split_documents
from data_pipelines.stages.spool import cut_into_blocks
from data_pipelines.stages.stage import OnlyEncodable, in_turn
from data_pipelines.stages.train_tokenizer import FolderSpec
from data_pipelines.stages.verify import problems
from lmtrain.data.manifest import Manifest
from lmtrain.data.shard_writer import write_manifest
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.loading import load_tokenizer

MUCH = 5
READING_THE_TOKENIZER = "reading the tokenizer"
NO_HELD_OUT = HeldOut(0, 0)  # compressing held-out text to compare with has a cost of its own, up to 4 MB of it


@final
class Watch:
    """CPU seconds of this process by stage, one entry a round."""

    def __init__(self) -> None:
        """Start empty."""
        self.seconds: dict[str, list[float]] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """Do the work and book its time."""
        begun = time.process_time()
        done = work()
        self.seconds.setdefault(name, []).append(time.process_time() - begun)
        return done


def mixed(texts: Sequence[str], *, copies: int) -> list[str]:
    """Return as many texts, made of the same paragraphs in other orders, so that none is there twice."""
    chance = random.Random(copies)
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n") if paragraph]
    made: list[str] = []
    for _ in range(copies):
        chance.shuffle(paragraphs)
        text = ""
        for paragraph in paragraphs:
            text += paragraph + "\n\n"
            if len(text) > DOCUMENT_CHARACTERS:
                made.append(text)
                text = ""
    return made


def write(texts: Sequence[str], path: Path) -> Path:
    """Write texts as JSON lines, as parquet, or as one file of text, by the suffix."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"text": list(texts)}), path)
    else:
        path.write_text("".join(texts))
    return path


def through_stages(path: Path, tokenizer: Tokenizer, folder: Path, watch: Watch) -> None:
    """Do what the verb does, each stage to its end before the next one begins."""
    source = Files(paths=[str(path)])
    watch("fingerprint of the source (up to 256 MB)", source.fingerprint)
    items = watch("read", lambda: list(source.documents()))
    cleaning = [*default_cleaning().values(), WholeConversations(), OnlyEncodable()]
    items = watch("clean", lambda: list(in_turn(cleaning, items)))
    items = watch("deduplicate: hash", lambda: list(in_turn(default_deduplication().values(), items)))
    documents = [item for item in items if isinstance(item, Document)]
    split = watch("split", lambda: list(split_documents(documents, held_out=NO_HELD_OUT, tell=print)))
    blocks = watch("blocks and their digests", lambda: _with_digests(split))
    encoded = watch(
        "encode, end-of-text, counts", lambda: [encode_block(block, tokenizer, dtype="uint16") for block in blocks]
    )
    paths = [folder / f"block_{block.number}" for block in blocks]
    watch(
        "encoded blocks to the disk and back",
        lambda: [
            (save_encoded(one, at, text_sha256=""), load_encoded(at)) for one, at in zip(encoded, paths, strict=True)
        ],
    )
    for at in paths:
        at.unlink()
    shards = Shards(folder, dtype="uint16", shard_tokens=10**8, wanted=("train",), token_budget=None, commit=None)
    watch("append to shards: write, sha256", lambda: [shards.append(one, text_sha256="") for one in encoded])
    splits = watch("sync", shards.finish)
    manifest = Manifest("x", "uint16", tokenizer.vocab_size, tokenizer.fingerprint, splits)
    tokenizer.save(folder / "tokenizer")
    write_manifest(folder, manifest)
    watch(READING_THE_TOKENIZER, lambda: load_tokenizer(folder / "tokenizer"))
    assert not list(watch("verify", lambda: list(problems(folder))))
    watch.seconds["verify"][-1] -= watch.seconds[READING_THE_TOKENIZER][-1]  # the same for every corpus


def _with_digests(split: Any) -> Any:
    blocks = list(cut_into_blocks(split))
    assert all(block.sha256 for block in blocks)
    return blocks


def prepared(path: Path, spec: FolderSpec, folder: Path) -> None:
    """Run the verb itself."""
    prepare(
        source=Files(paths=[str(path)]),
        tokenizer=spec,
        cleaning=default_cleaning(),
        deduplicate=default_deduplication(),
        validation_fraction=0,
        test_fraction=0,
        root=str(folder),
        num_processes=0,
    )


def measure(texts: list[str], tokenizer: Tokenizer, scratch: Path, *, rounds: int, suffix: str) -> Watch:
    """Let all take turns."""
    little, much = write(texts, scratch / f"a.{suffix}"), write(mixed(texts, copies=MUCH), scratch / f"b.{suffix}")
    tokenizer.save(scratch / "tokenizer")
    tokenizer.encode_batch_flat(texts[:400])  # the first megabyte is encoded twice
    watch = Watch()
    for number in range(rounds):
        folder = scratch / f"{number}"
        folder.mkdir()
        through_stages(little, tokenizer, folder, watch)
        batches = [texts[start : start + 1000] for start in range(0, len(texts), 1000)]
        watch("the encoder alone", lambda: [tokenizer.encode_batch_flat(batch) for batch in batches])  # noqa: B023
        for name, path in (("little", little), ("much", much)):
            spec = FolderSpec(path=str(scratch / "tokenizer"))
            watch(name, lambda: prepared(path, spec, folder / name))  # noqa: B023
    return watch


def main() -> None:
    """Print a table of ms a megabyte."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", choices=("jsonl", "parquet", "txt"), default="jsonl")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    documents = prose(2 * arguments.megabytes * 1_000_000)
    half = len(documents) // 2
    texts = documents[:half]
    tokenizer = train_byte_pairs(documents[half:], vocab_size=VOCAB_SIZE)
    with tempfile.TemporaryDirectory() as scratch:
        watch = measure(texts, tokenizer, Path(scratch), rounds=arguments.rounds, suffix=arguments.format)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    median = {name: statistics.median(seconds) for name, seconds in watch.seconds.items()}
    little, much = median.pop("little"), median.pop("much")
    alone, reading = median.pop("the encoder alone"), median.pop(READING_THE_TOKENIZER)
    print(f"\n{megabytes:.1f} MB of prose in {half:,} documents as {arguments.format}, CPU time of one core\n")
    print("| stage | ms/MB |\n|---|---|")
    for name, seconds in median.items():
        print(f"| {name} | {1e3 * seconds / megabytes:.2f} |")
    rates = {
        "all of these": sum(median.values()),
        "the encoder alone": alone,
        "`lmtrain prepare`, each further megabyte": float(np.subtract(much, little)) / (MUCH - 1),
    }
    for name, seconds in rates.items():
        print(f"| {name} | {1e3 * seconds / megabytes:.2f} ({megabytes / seconds:.0f} MB/s) |")
    print(f"| `lmtrain prepare` of {megabytes:.0f} MB, start included | {little:.2f} s |")
    print(f"| {READING_THE_TOKENIZER} once | {reading:.2f} s |")


if __name__ == "__main__":
    main()
