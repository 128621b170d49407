"""Do time and memory of `prepare` grow as they should with the corpus: linear and not at all?

    python benchmarks/questions/prepare_scale.py [--largest 100MB] [--json FILE] [--plot FILE.png]

Each size is prepared in a process of its own: made-up prose in documents of 4 kB, a BPE tokenizer that is there, two
held-out splits, everything verified. Then sparse corpora of up to 100 GB are opened and read at 64 places.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, final

import numpy as np

from data_pipelines.prepare import prepare
from data_pipelines.sources.base import Document, Source
from data_pipelines.stages.defaults import default_cleaning, default_deduplication
from data_pipelines.stages.train_tokenizer import FolderSpec
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.data.manifest import Manifest, Shard, SplitManifest
from lmtrain.data.shard_writer import write_manifest
from lmtrain.data.shards import open_dataset
from lmtrain.tokenizers.bpe import train_byte_pairs

DOCUMENT_BYTES = 4_000
SHARD_TOKENS = 100_000_000
LETTERS = "eeeeeetttttaaaaooooiiiinnnnsssshhhhrrrrddlllucmmwfgypbvk"


@final
class Prose(Source):
    """Made-up words by Zipf's law in sentences; each document its own."""

    def __init__(self, num_bytes: int) -> None:
        """Make about so many bytes."""
        self._num_bytes = num_bytes

    @property
    def name(self) -> str:
        """Return `prose`."""
        return "prose"

    def fingerprint(self) -> str:
        """Return the size."""
        return f"{self._num_bytes}"

    def documents(self) -> Iterator[Document]:
        """Yield at least 60 documents."""
        sentences = make_sentences()
        chance = random.Random(1)
        num_sentences = max(1, min(DOCUMENT_BYTES, self._num_bytes // 60) // 90)
        for number in range(max(60, self._num_bytes // DOCUMENT_BYTES)):
            yield Document(f"{number}", f"Number {number}. {' '.join(chance.choices(sentences, k=num_sentences))}")


def make_sentences() -> list[str]:
    """Return 20,000 sentences of about 90 characters."""
    chance = random.Random(0)
    words = ["".join(chance.choices(LETTERS, k=chance.randint(1, 9))) for _ in range(30_000)]
    weights = list(accumulate(1 / (rank + 3) for rank in range(len(words))))
    return [" ".join(chance.choices(words, cum_weights=weights, k=17)).capitalize() + "." for _ in range(20_000)]


def measure_prepare(num_bytes: int, tokenizer: str) -> dict[str, Any]:
    """Prepare a corpus in this process: seconds, CPU seconds and the most memory it took."""
    with tempfile.TemporaryDirectory() as root:
        started, cpu = time.perf_counter(), time.process_time()
        folder = prepare(
            source=Prose(num_bytes),
            tokenizer=FolderSpec(path=tokenizer, vocab_size=8192),
            cleaning=default_cleaning(),
            deduplicate=default_deduplication(),
            root=root,
            num_processes=0,
        )
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        splits = open_dataset(folder).manifest.splits.values()
    return {
        "text_bytes": sum(split.text_bytes for split in splits),
        "tokens": sum(split.num_tokens for split in splits),
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def measure_open(num_bytes: int) -> dict[str, Any]:
    """Open a sparse corpus of so many bytes of ids and read it at 64 places."""
    with tempfile.TemporaryDirectory() as name:
        num_tokens = write_sparse(Path(name), num_bytes)
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        split = open_dataset(name).split("train")
        split.windows(np.arange(64, dtype=np.int64) * (num_tokens // 65), 1025)
        seconds = time.perf_counter() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"id_bytes": num_bytes, "seconds": round(seconds, 4), "grown_mb": round(grown / 1024, 1)}


def write_sparse(folder: Path, num_bytes: int) -> int:
    """Write a corpus that takes no room; return its tokens."""
    sizes = [SHARD_TOKENS] * (num_bytes // 2 // SHARD_TOKENS) or [num_bytes // 2]
    shards = tuple(Shard(f"train_{number:05d}.ds", size, 1, "", "") for number, size in enumerate(sizes))
    for shard in shards:
        with (folder / shard.file).open("wb") as file:
            file.truncate(2 * shard.num_tokens)
        (folder / shard.index_file).write_bytes(np.array([shard.num_tokens], "<u8").tobytes())
    split = SplitManifest(len(shards), sum(sizes), 1, shards)
    write_manifest(folder, Manifest("sparse", "uint16", 8192, "", {"train": split}))
    return sum(sizes)


def apart(*words: str) -> dict[str, Any]:
    """Measure in a process of its own, so that peaks do not add up."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [sys.executable, __file__, *words]
    return json.loads(subprocess.run(arguments, stdout=subprocess.PIPE, check=True, env=environment).stdout)


def plot(prepared: list[dict[str, Any]], opened: list[dict[str, Any]], path: Path) -> None:
    """Draw seconds and memory against size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    seconds, memory = figure.subplots(1, 2)
    sizes = [one["text_bytes"] for one in prepared]
    seconds.loglog(sizes, [one["seconds"] for one in prepared], "o-", label="prepare (text)")
    seconds.loglog([one["id_bytes"] for one in opened], [one["seconds"] for one in opened], "s-", label="open (ids)")
    seconds.set(xlabel="bytes", ylabel="seconds", title="time")
    memory.semilogx(sizes, [one["peak_mb"] for one in prepared], "o-", label="prepare: peak")
    memory.semilogx(
        [one["id_bytes"] for one in opened], [one["grown_mb"] for one in opened], "s-", label="open: growth"
    )
    memory.set(xlabel="bytes", ylabel="MB", title="memory", ylim=(0, None))
    for axes in (seconds, memory):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure sizes a decade apart."""
    parser = argparse.ArgumentParser(description="Time and memory of prepare against size.")
    parser.add_argument("--largest", default="100MB", help="of the corpora that are prepared (100MB)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    largest = int(parse_quantity(arguments.largest, "bytes"))
    with tempfile.TemporaryDirectory() as tokenizer:
        texts = (document.text for document in Prose(2_000_000).documents())
        train_byte_pairs(texts, vocab_size=8192).save(Path(tokenizer))
        sizes = [size for size in (10**power for power in range(4, 12)) if size <= largest]
        prepared = [apart("prepare", str(size), tokenizer) for size in sizes]
    opened = [apart("open", str(10**power)) for power in range(7, 12)]
    for one in (*prepared, *opened):
        print(json.dumps(one))
    if arguments.json:
        arguments.json.write_text(json.dumps({"prepare": prepared, "open": opened}, indent=1) + "\n")
    if arguments.plot:
        plot(prepared, opened, arguments.plot)


if __name__ == "__main__":
    if sys.argv[1:2] == ["prepare"]:
        print(json.dumps(measure_prepare(int(sys.argv[2]), sys.argv[3])))
    elif sys.argv[1:2] == ["open"]:
        print(json.dumps(measure_open(int(sys.argv[2]))))
    else:
        main()
