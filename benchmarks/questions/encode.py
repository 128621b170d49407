"""Raw text to ids and to shards on one core: ours beside `datasets.map`, tokenizers, tiktoken and fastokens.

All take turns on the same prose in one process that is held to one core, each measured in CPU seconds of this process
(time.process_time). The tokenizer is one of 32,768 entries learned from other prose; all encoders but ours get its
file, and their ids are compared. The prose is gathered from the documentation that this machine has.

    python benchmarks/questions/encode.py                    # about a minute
    python benchmarks/questions/encode.py --megabytes 24 --rounds 5
"""

import argparse
import json
import os
import re
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CORE_SETTINGS = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
os.environ.update(CORE_SETTINGS)  # read by the encoders when they are imported

import fastokens  # noqa: E402
import numpy as np  # noqa: E402
import tiktoken  # noqa: E402  # pyright: ignore[reportMissingImports]  # a peer, installed by hand
import tokenizers  # noqa: E402

from data_pipelines.prepare import prepare  # noqa: E402
from data_pipelines.sources.files import Files  # noqa: E402
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair  # noqa: E402
from data_pipelines.stages.deduplicate import ExactDeduplication  # noqa: E402
from data_pipelines.stages.train_tokenizer import FolderSpec  # noqa: E402
from lmtrain.data.shard_writer import ShardWriter  # noqa: E402
from lmtrain.tokenizers.base import Tokenizer  # noqa: E402
from lmtrain.tokenizers.bpe import SPLIT_EXPRESSION, train_byte_pairs  # noqa: E402

VOCAB_SIZE = 32_768
DOCUMENT_CHARACTERS = 4000
MIN_PARAGRAPH_CHARACTERS = 200
PROSE_SHARE = 0.9  # of letters and spaces in a paragraph of prose
MUCH = 5
PREPARE, PREPARE_MUCH = "ours, `lmtrain prepare` of JSON lines", "the same, of five times as much"
FURTHER = "the same, each further megabyte"
Contender = Callable[[], Any]


def paragraphs() -> Iterator[str]:
    """Yield paragraphs of English prose from the documentation on this machine, each once."""
    roots = (Path("/usr/share/doc"), Path(sysconfig.get_paths()["purelib"]), Path(sysconfig.get_paths()["stdlib"]))
    seen: set[int] = set()
    for path in (path for root in roots for path in sorted(root.rglob("*"))):
        if path.suffix not in {".md", ".rst", ".txt", ".py", ".html"} or not path.is_file():
            continue
        for text in re.split(r"\n\s*\n|\"\"\"|</p>", path.read_text(errors="ignore")):
            text = re.sub(r"\s*\n[\s#*]*", " ", re.sub("<[^>]*>", "", text)).strip()
            is_prose = len(text) >= MIN_PARAGRAPH_CHARACTERS and text.endswith(".") and " import " not in text
            share = sum(map(str.isalpha, text)) + text.count(" ")
            if is_prose and share > PROSE_SHARE * len(text) and hash(text) not in seen:
                seen.add(hash(text))
                yield text


def prose(num_bytes: int) -> list[str]:
    """Return documents of several paragraphs, about so many bytes in all."""
    documents: list[str] = []
    document, total = "", 0
    for text in paragraphs():
        document += text + "\n\n"
        if len(document) > DOCUMENT_CHARACTERS:
            documents.append(document)
            total += len(document.encode())
            document = ""
        if total >= num_bytes:
            break
    return documents


def as_tiktoken(tokenizer: Tokenizer) -> tiktoken.Encoding:
    """Return the same tokenizer as an encoding of tiktoken: an id is also the rank of its merge."""
    ranks = {piece: id_ for id_, piece in enumerate(tokenizer.bytes_of_ids()) if piece}
    specials = dict(tokenizer.special_tokens)
    return tiktoken.Encoding("ours", pat_str=SPLIT_EXPRESSION, mergeable_ranks=ranks, special_tokens=specials)


def with_datasets(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> Any:
    """Encode as its documentation does: a batched map over a data set in memory."""
    import datasets

    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict({"text": texts})
    return table.map(
        lambda batch: {"ids": [one.ids for one in tokenizer.encode_batch(batch["text"])]},
        batched=True,
        remove_columns=["text"],
        keep_in_memory=True,
        load_from_cache_file=False,
    )


def write_shards(tokenizer: Tokenizer, lines: Path, folder: Path) -> None:
    """Read, encode and write, and nothing else."""
    folder.mkdir()
    writer = ShardWriter(folder, split="train", dtype="uint16", shard_tokens=100_000_000)
    batch: list[str] = []
    for document in Files(paths=[str(lines)]).documents():
        batch.append(document.text)
        if len(batch) == 1000:
            writer.append(*tokenizer.encode_batch_flat(batch))
            batch = []
    if batch:
        writer.append(*tokenizer.encode_batch_flat(batch))
    writer.close(text_bytes=0)


def contenders(tokenizer: Tokenizer, texts: list[str], folder: Path) -> dict[str, Contender]:
    """Return what takes turns, by name; the tokenizer is saved in the folder."""
    json_text = (folder / "tokenizer/tokenizer.json").read_text()
    reference = tokenizers.Tokenizer.from_str(json_text)
    fast = fastokens.Tokenizer.from_json_str(json_text)
    tik = as_tiktoken(tokenizer)
    lines, many_lines = folder / "prose.jsonl", folder / "much_prose.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    copies = (json.dumps({"text": f"{copy} {text}"}) + "\n" for copy in range(MUCH) for text in texts)
    many_lines.write_text("".join(copies))
    _require_same_ids(tokenizer, texts[:200], tik, fast, reference)
    number = iter(range(1_000_000))
    spec = FolderSpec(path=str(folder / "tokenizer"))

    def prepared(path: Path) -> Path:
        return prepare(
            source=Files(paths=[str(path)]),
            tokenizer=spec,
            cleaning={"unicode": UnicodeRepair(), "length": LengthFilter()},
            deduplicate={"exact": ExactDeduplication()},
            validation_fraction=0,  # compressing held-out text to compare with has a cost of its own, up to 32 MB of it
            test_fraction=0,
            root=str(folder / f"data_{next(number)}"),
            num_processes=0,
        )

    return {
        "datasets.map with tokenizers": lambda: with_datasets(reference, texts),
        "tokenizers, encode_batch": lambda: [one.ids for one in reference.encode_batch(texts)],
        "tiktoken, encode_ordinary": lambda: [tik.encode_ordinary(text) for text in texts],
        "fastokens, encode": lambda: [fast.encode(text).ids for text in texts],
        "ours, ids in memory": lambda: tokenizer.encode_batch_flat(texts),
        "ours, JSON lines to shards, nothing else": lambda: write_shards(
            tokenizer, lines, folder / f"shards_{next(number)}"
        ),
        PREPARE: lambda: prepared(lines),
        PREPARE_MUCH: lambda: prepared(many_lines),
    }


def _require_same_ids(tokenizer: Tokenizer, texts: list[str], tik: Any, fast: Any, reference: Any) -> None:
    expected = [one.ids for one in reference.encode_batch(texts)]
    assert [tik.encode_ordinary(text) for text in texts] == expected
    assert [fast.encode(text).ids for text in texts] == expected
    assert tokenizer.encode_batch_flat(texts)[0].tolist() == np.concatenate(expected).tolist()


def main() -> None:
    """Print a table of MB/s a core and the ratio to the baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    documents = prose(2 * arguments.megabytes * 1_000_000)
    half = len(documents) // 2
    texts, megabytes = documents[:half], sum(len(text.encode()) for text in documents[:half]) / 1e6
    tokenizer = train_byte_pairs(documents[half:], vocab_size=VOCAB_SIZE)
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save(Path(scratch) / "tokenizer")
        turns = contenders(tokenizer, texts, Path(scratch))
        for _ in range(arguments.rounds):
            for name, turn in turns.items():
                begun = time.process_time()
                turn()
                seconds.setdefault(name, []).append(time.process_time() - begun)
                sys.stderr.write(f"{name}: {seconds[name][-1]:.2f} s\n")
    print_table(seconds, megabytes=megabytes, num_documents=half)


def print_table(seconds: dict[str, list[float]], *, megabytes: float, num_documents: int) -> None:
    """Print the median rate of each, and its ratio to the first."""
    median = {name: statistics.median(spent) for name, spent in seconds.items()}
    rates = {name: megabytes / spent for name, spent in median.items()}
    rates[PREPARE_MUCH] *= MUCH
    rates[FURTHER] = (MUCH - 1) * megabytes / (median[PREPARE_MUCH] - median[PREPARE])
    baseline = next(iter(rates.values()))
    rounds = len(next(iter(seconds.values())))
    print(f"\n{megabytes:.1f} MB of prose in {num_documents:,} documents, median of {rounds} rounds\n")
    print("| | MB/s a core | times the baseline |\n|---|---|---|")
    for name, rate in rates.items():
        print(f"| {name} | {rate:.1f} | {rate / baseline:.1f} |")


if __name__ == "__main__":
    main()
