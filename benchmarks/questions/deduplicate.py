"""Deduplication's cost a document, over three decades of made-up corpora: `python benchmarks/questions/deduplicate.py`.

Each line is measured in a process of its own: time is of this process's CPU, memory is the growth of its peak.
Exact: documents of 16 bytes, so that the hash and the set are all there is. MinHash: 400 words, on one process.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.minhash import MinHashDeduplication
from data_pipelines.stages.quality import C4Quality, FineWebQuality, GopherQuality
from data_pipelines.stages.repetition import GopherRepetition
from data_pipelines.stages.stage import in_turn

SIZES = {"exact": (10_000, 100_000, 1_000_000, 10_000_000), "minhash": (10, 100, 1_000, 10_000), "web": (100, 1_000)}
WORDS_A_PAGE = 400


def numbered(count: int) -> Iterator[Document]:
    """Yield short documents, every tenth a duplicate."""
    return (Document("", f"{number - number % 10 // 9:016d}") for number in range(count))


def pages(count: int) -> Iterator[Document]:
    """Yield pages of made-up words, every tenth with one word changed from the one before."""
    rng = random.Random(0)
    letters = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(20_000)]
    words: list[str] = []
    for number in range(count):
        if number % 10 == 9:
            words[7] = "changed"
        else:
            words = rng.choices(letters, k=WORDS_A_PAGE)
            words[14::15] = [f"{word}." for word in words[14::15]]
            words[59::60] = [f"{word}\n" for word in words[59::60]]
            words[::15] = ["the"] * len(words[::15])
            words[1::15] = ["and"] * len(words[1::15])
        yield Document(str(number), " ".join(words))


def measure(stage: str, count: int) -> None:
    """Print one line for one stage and one size."""
    stages = {
        "exact": lambda: [ExactDeduplication()],
        "minhash": lambda: [MinHashDeduplication()],
        "web": lambda: [
            *(UnicodeRepair(), LengthFilter()),
            *(GopherQuality(), GopherRepetition(), C4Quality(), FineWebQuality()),
        ],
    }[stage]()
    documents = numbered(count) if stage == "exact" else iter(list(pages(count)))
    list(in_turn(stages, pages(5)))  # what is imported late
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    dropped = sum(isinstance(item, Skipped) for item in in_turn(stages, documents))
    seconds = time.process_time() - started
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(
        f"| {stage} | {count:,} | {dropped:,} | {seconds:.2f} | {1e6 * seconds / count:,.1f} | {grown / count:,.0f} |",
        flush=True,
    )


def main() -> None:
    """Print a table, a process a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", nargs="?", choices=SIZES)
    parser.add_argument("count", nargs="?", type=int)
    arguments = parser.parse_args()
    if arguments.count is not None:
        with tempfile.TemporaryFile("w") as quiet, redirect_stderr(quiet):
            measure(arguments.stage, arguments.count)
        return
    print("| stage | documents | dropped | CPU seconds | microseconds a document | bytes of memory a document |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for stage in [arguments.stage] if arguments.stage else SIZES:
        for count in SIZES[stage]:
            subprocess.run([sys.executable, str(Path(__file__)), stage, str(count)], check=True)


if __name__ == "__main__":
    main()
