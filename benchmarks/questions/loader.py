"""How fast batches come: Mtokens a second of one core, and how long one `next()` takes, against named others.

All loaders take turns in one process, a few batches each, on one made-up corpus with lengths as of web text (lognormal,
median 616, mean 999 tokens), memory-mapped and in the page cache. Mtokens/s are of turns without a pause, of the CPU
time of the whole process, so that what another thread reads ahead is paid for. The time of one next() is what a step
waits: by the clock, in turns with a pause of a millisecond in the place of a step (so other work on the machine counts
too). Every batch has 32,768 tokens.

    python benchmarks/questions/loader.py                          # about a minute: a table in Markdown
    python benchmarks/questions/loader.py --tokens 20M --rounds 5
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.data.manifest import Manifest
from lmtrain.data.packing import BestFit, Contiguous, OneDocument, Packing
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.training.datamodule import TokenDataModule, mixture

BATCH_TOKENS = 32_768
CONTEXTS = (256, 1024, 2048, 8192)
VOCAB_SIZE = 50_000
PAUSE_SECONDS = 1e-3
ON_CPU = SimpleNamespace(root_device=torch.device("cpu"))


def web_lengths(num_tokens: int, *, seed: int = 0) -> np.ndarray[Any, Any]:
    """Draw lengths of documents, end-of-text included, until they have `num_tokens`."""
    random = np.random.default_rng(seed)
    lengths = np.exp(random.normal(np.log(616), 0.984, num_tokens // 500 + 100)).astype(np.int64) + 2
    return lengths[: int(np.searchsorted(np.cumsum(lengths), num_tokens)) + 1]


def write_corpus(folder: Path, num_tokens: int, *, shard_tokens: int) -> Path:
    """Write random ids in documents, native shards and a manifest."""
    folder.mkdir(parents=True)
    lengths = web_lengths(num_tokens)
    ids = np.random.default_rng(1).integers(1, VOCAB_SIZE, size=int(lengths.sum()), dtype=np.uint16)
    ends = np.cumsum(lengths)
    ids[ends - 1] = 0
    writer = ShardWriter(folder, split="train", dtype="uint16", shard_tokens=shard_tokens)
    writer.append(ids, ends)
    splits = {"train": writer.close(text_bytes=len(ids))}
    manifest = Manifest(
        name=folder.name, dtype="uint16", vocab_size=VOCAB_SIZE, tokenizer_fingerprint="0" * 64, splits=splits
    )
    write_manifest(folder, manifest)
    return folder


def ours(folder: Path, context_tokens: int, packing: Packing | None) -> Iterable[Any]:
    """Serve one folder."""
    batch = BatchPlan(
        context_tokens=context_tokens,
        sequences_per_micro_step=BATCH_TOKENS // context_tokens,
        accumulation_micro_steps=1,
        num_ranks=1,
    )
    return _started(TokenDataModule(folder=folder, batch=batch, seed=0, packing=packing))


def ours_mixed(folders: list[Path], context_tokens: int) -> Iterable[Any]:
    """Serve two folders, 7 to 3."""
    batch = BatchPlan(
        context_tokens=context_tokens,
        sequences_per_micro_step=BATCH_TOKENS // context_tokens,
        accumulation_micro_steps=1,
        num_ranks=1,
    )
    sources = {f"s{n}": {"path": str(folder), "weight": w} for n, (folder, w) in enumerate(zip(folders, (7, 3)))}  # noqa: B905
    return _started(mixture(sources=sources, batch=batch, seed=0))


def _started(datamodule: TokenDataModule) -> Iterable[Any]:
    datamodule.trainer = SimpleNamespace(global_rank=0, global_step=0, strategy=ON_CPU)
    return datamodule.train_dataloader()


def nanogpt_style(file: Path, context_tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw random windows as nanoGPT's train.py does: a fresh memmap a batch, int64 on the host."""
    num_rows = BATCH_TOKENS // context_tokens
    while True:
        data = np.memmap(file, dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - context_tokens, (num_rows,))
        x = torch.stack([torch.from_numpy(data[i : i + context_tokens].astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + context_tokens].astype(np.int64)) for i in ix])
        yield x, y


class WindowDataset(Dataset[Tensor]):
    """What people write first: one window an index."""

    def __init__(self, file: Path, context_tokens: int) -> None:
        self._ids = np.memmap(file, dtype=np.uint16, mode="r")
        self._context_tokens = context_tokens

    def __len__(self) -> int:
        return (len(self._ids) - 1) // self._context_tokens

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._context_tokens
        return torch.from_numpy(self._ids[start : start + self._context_tokens + 1].astype(np.int64))


def endless(loader: "DataLoader[Tensor]") -> Iterator[Tensor]:
    """Go round a DataLoader."""
    while True:
        yield from loader


def loaders(one: Path, many: Path, context_tokens: int) -> dict[str, Iterator[Any]]:
    """Return everything that takes a turn, by name."""
    file, num_rows = one / "train_00000.ds", BATCH_TOKENS // context_tokens
    made: dict[str, Iterable[Any]] = {
        "contiguous": ours(one, context_tokens, None),
        "contiguous, many shards": ours(many, context_tokens, None),
        "contiguous, document mask": ours(one, context_tokens, Contiguous(document_mask=True)),
        "best_fit": ours(one, context_tokens, BestFit()),
        "best_fit, document mask": ours(one, context_tokens, BestFit(document_mask=True)),
        "document": ours(one, context_tokens, OneDocument()),
        "mixture of two": ours_mixed([one, many], context_tokens),
        "np.memmap as in nanoGPT": nanogpt_style(file, context_tokens),
        "torch DataLoader, shuffled": endless(
            DataLoader(WindowDataset(file, context_tokens), batch_size=num_rows, shuffle=True)
        ),
    }
    return {name: iter(loader) for name, loader in made.items()}


class Spent(NamedTuple):
    """Seconds of each `next()` behind a pause, and the process's of each turn without pauses."""

    waits: list[float]
    turns: list[float]


def measure(turns: dict[str, Iterator[Any]], *, rounds: int, turn_batches: int) -> dict[str, Spent]:
    """Let the loaders take turns; the first turn warms up."""
    spent = {name: Spent([], []) for name in turns}
    for number in range(rounds + 1):
        for name, loader in turns.items():
            begun = time.process_time()
            deque(islice(loader, turn_batches), maxlen=0)
            seconds = time.process_time() - begun
            waits = [_wait_for(loader) for _ in range(turn_batches)]
            if number:
                spent[name].turns.append(seconds)
                spent[name].waits.extend(waits)
    return spent


def _wait_for(loader: Iterator[Any]) -> float:
    time.sleep(PAUSE_SECONDS)
    started = time.perf_counter_ns()
    next(loader)
    return (time.perf_counter_ns() - started) * 1e-9


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="100M", help="tokens of the corpus")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each loader")
    parser.add_argument("--contexts", type=int, nargs="*", default=CONTEXTS, help="tokens of a row")
    parser.add_argument("--turn-batches", type=int, default=256, help="batches of one turn, as are worked out at once")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_tokens = int(parse_quantity(arguments.tokens, "tokens"))
    print("| context | loader | Mtokens/s a core | p50 µs | p99 µs | p99.9 µs |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        one = write_corpus(Path(temporary, "one"), num_tokens, shard_tokens=1 << 40)
        many = write_corpus(Path(temporary, "many"), num_tokens, shard_tokens=num_tokens // 50)
        for context_tokens in arguments.contexts:
            turns = loaders(one, many, context_tokens)
            gc.collect()
            gc.freeze()
            seconds = measure(turns, rounds=arguments.rounds, turn_batches=arguments.turn_batches)
            for name, spent in seconds.items():
                percentiles = statistics.quantiles(spent.waits, n=1000)
                speed = BATCH_TOKENS * len(spent.waits) / sum(spent.turns) / 1e6
                told = " | ".join(f"{1e6 * percentiles[place]:.0f}" for place in (499, 989, 998))
                print(f"| {context_tokens} | {name} | {speed:,.0f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
