"""A source's documents into the shards of a folder, block by block.

An encoded block is kept until the shards are whole. To continue after any end, the source is read again (cheap compared
with encoding), and blocks whose text has the digest of an encoded one are not encoded again.
"""

import contextlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import final

import numpy as np

from data_pipelines.build_request import BuildRequest
from data_pipelines.processes import num_cores, run_jobs
from data_pipelines.progress import stage
from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.stages.blocks import BlockFacts, cut_into_blocks, facts_of, sha256_of
from data_pipelines.stages.encode import Encoded, encode_documents, load_encoded, text_sha256_of
from data_pipelines.stages.pieces import read_items, write_items
from data_pipelines.stages.split import SPLITS, TRAIN, HeldOut, split_documents
from data_pipelines.stages.stage import Engine, Stage
from data_pipelines.stages.train_tokenizer import hold_blocks, learn
from data_pipelines.work_folder import WorkFolder
from lmtrain.data.manifest import TOKENIZER_FOLDER, SplitManifest
from lmtrain.data.shard_writer import ShardWriter

REMOVED = "control characters"
SHOWN = 3  # dropped documents of each reason
MANY_BLOCKS = 16  # from which on processes are worth their start
MANY_CORES = 4  # below, one thread reads and one encodes


@final
@dataclass(frozen=True)
class SourcePass:
    """One pass over a source; `dropped` counts the drops so far by reason, `first` names the first three of each.

    Of the documents that stay, the characters removed by cleaning are counted.
    """

    source: Source
    stages: Sequence[Stage]
    engine: Engine
    held_out: HeldOut
    scratch: Path
    dropped: Counter[str] = field(default_factory=Counter[str])
    first: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def blocks(self) -> Iterator[list[Document]]:
        """Yield the remaining documents, in the source's order, each with its split."""
        return cut_into_blocks(split_documents(self.kept(), held_out=self.held_out))

    def kept(self) -> Iterator[Document]:
        """Yield the documents left by the stages, and count the others."""
        left_out = Counter[str]()
        for item in self.engine(self.source, self.stages, folder=self.scratch):
            if isinstance(item, Skipped):
                self._count(left_out, item.reason, 1, item.id)
                continue
            if item.num_removed:
                self._count(left_out, REMOVED, item.num_removed, item.id)
            if left_out:  # kept with the document, so that reading ahead does not count ahead
                item, left_out = replace(item, left_out=left_out), Counter[str]()
            yield item

    def notes(self, dropped: Mapping[str, int]) -> list[str]:
        """Return the dropped documents, and the characters removed from the others, an entry per reason."""
        return [
            f"{count:,} {'removed' if reason == REMOVED else 'dropped'} ({reason}, first: "
            f"{', '.join(self.first[reason])})"
            for reason, count in sorted(dropped.items())
        ]

    def _count(self, left_out: Counter[str], reason: str, number: int, name: str) -> None:
        left_out[reason] += number
        self.dropped[reason] += number
        names = self.first.setdefault(reason, [])
        if len(names) < SHOWN:
            names.append(name)


@dataclass(frozen=True)
class Filled:
    """The splits with whole shards, and by reason the number of dropped documents and the first ones."""

    splits: Mapping[str, SplitManifest]
    dropped: Mapping[str, int]
    first: Mapping[str, Sequence[str]]


def fill_shards(
    request: BuildRequest,
    engine: Engine,
    work: WorkFolder,
    *,
    num_processes: int | None,
) -> Filled:
    """Bring every document into the shards, or those up to the budget.

    `num_processes` encode, None decides by cores and text.
    """
    source, dtype, budget = request.source, request.token_dtype, request.token_budget
    reading = SourcePass(source, request.stages, engine, request.held_out, work.scratch)
    blocks = _with_tokenizer(_saved(reading.blocks(), work), request, work)
    shards, dropped = Shards(work.folder, request), Counter[str]()
    with stage("encode") as progress, contextlib.closing(_encoded(blocks, work, dtype, num_processes)) as encoded:
        for block in encoded:
            added = shards.append(load_encoded(work.encoded(block.number)))
            last_place = int(added.places[-1]) if len(added.places) else -1
            for place, reasons in block.left_out.items():
                if not shards.is_full or place <= last_place:
                    dropped.update(reasons)
            progress.advance(
                documents=len(added.ends),
                tokens=len(added.ids),
                text_bytes=int(added.text_bytes.sum()),
                fraction=shards.train_tokens / budget if budget else source.fraction_read,
            )
            if shards.is_full:
                break
        else:
            dropped = reading.dropped  # also what came behind the last document
        progress.notes += reading.notes(dropped)
    return Filled(shards.finish(), dropped, reading.first)


@final
class Shards:
    """The shards of all splits under construction, up to the training document at the budget.

    The held-out text is the documents before that one; a split still empty then gets its next one.
    """

    def __init__(self, folder: Path, request: BuildRequest) -> None:
        """Begin in a folder."""
        self._wanted = request.held_out.splits
        self._budget = request.token_budget
        self._text_bytes: dict[str, int] = dict.fromkeys(SPLITS, 0)
        self._writers = {
            split: ShardWriter(folder, split=split, dtype=request.token_dtype, shard_tokens=request.shard_tokens)
            for split in SPLITS
        }

    @property
    def train_tokens(self) -> int:
        """Return how many tokens there are to train on so far."""
        return self._writers[TRAIN].num_tokens

    @property
    def is_full(self) -> bool:
        """Return whether the budget is reached, with something held out."""
        return self._budget is not None and self.train_tokens >= self._budget and not self._empty_splits()

    def append(self, block: Encoded) -> Encoded:
        """Add the next block's documents, up to the one at the budget; return the added ones."""
        last = self._last_place(block)
        is_added = np.ones(len(block.ends), np.bool_)
        for number, split in enumerate(SPLITS):
            of_split = block.splits == number
            if last is not None:
                is_needed = split in self._empty_splits() and of_split.any()
                is_added[of_split & (block.places > (max(last, block.places[of_split][0]) if is_needed else last))] = (
                    False
                )
            part = block.select(of_split & is_added)
            self._writers[split].append(part.ids, part.ends, part.loss_mask)
            self._text_bytes[split] += int(part.text_bytes.sum())
        return block.select(is_added)

    def finish(self) -> dict[str, SplitManifest]:
        """Finish the last shards and describe the splits with any."""
        closed = {split: writer.close(text_bytes=self._text_bytes[split]) for split, writer in self._writers.items()}
        return {split: manifest for split, manifest in closed.items() if manifest.num_documents}

    def _last_place(self, block: Encoded) -> int | None:
        """Return the place of the training document at the budget, -1 where it is full; None: not in this block."""
        room = 0 if self._budget is None else self._budget - self.train_tokens
        if self._budget is None or room <= 0:
            return None if self._budget is None else -1
        train_tokens = np.where(block.splits == SPLITS.index(TRAIN), block.lengths, 0).cumsum()
        at = int(train_tokens.searchsorted(room))
        return int(block.places[at]) if at < len(train_tokens) else None

    def _empty_splits(self) -> list[str]:
        return [split for split in self._wanted if self._writers[split].num_tokens == 0 and split != TRAIN]


@final
class EncodeBlock:
    """Encode a block from its text on the disk; where there is none, it is encoded already."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self._folder, self._dtype = folder, dtype
        self._work = WorkFolder(folder)

    def __reduce__(self) -> tuple[type["EncodeBlock"], tuple[Path, str]]:
        """Leave the tokenizer behind: a worker reads its own."""
        return EncodeBlock, (self._folder, self._dtype)

    def __call__(self, block: BlockFacts) -> BlockFacts:
        """Replace the block's text by its ids."""
        text = self._work.text(block.number)
        if text.exists():
            documents = [item for item in read_items(text) if isinstance(item, Document)]
            encoded = encode_documents(documents, self._work.tokenizer(), dtype=self._dtype)
            encoded.save(self._work.encoded(block.number), text_sha256=sha256_of(documents))
            text.unlink()
        return block


def _saved(blocks: Iterable[Sequence[Document]], work: WorkFolder) -> Iterator[BlockFacts]:
    """Write the text of the blocks that are not encoded yet."""
    for number, block in enumerate(blocks):
        if text_sha256_of(work.encoded(number)) == sha256_of(block):
            work.text(number).unlink(missing_ok=True)
        else:
            write_items(work.text(number), block)
        yield facts_of(block, number)


def _encoded(
    blocks: Iterator[BlockFacts], work: WorkFolder, dtype: str, num_processes: int | None
) -> Generator[BlockFacts]:
    """Yield each block once it is encoded, in order."""
    if num_processes is None:
        first = list(islice(blocks, MANY_BLOCKS if num_cores() >= MANY_CORES else 0))
        num_processes = num_cores() - 1 if len(first) == MANY_BLOCKS else 0
        blocks = chain(first, blocks)
    yield from run_jobs(EncodeBlock(work.folder, dtype), blocks, num_processes=num_processes)


def _with_tokenizer(blocks: Iterator[BlockFacts], request: BuildRequest, work: WorkFolder) -> Iterator[BlockFacts]:
    """Give the folder its tokenizer; return the blocks to encode."""
    if (work.folder / TOKENIZER_FOLDER).is_dir():
        return blocks
    if request.spec.sample_bytes == 0:
        work.save_tokenizer(request.spec.build(()))
        return blocks
    held = hold_blocks(
        blocks, sample_bytes=request.spec.sample_bytes, budget=request.token_budget, source=request.source
    )
    if held:
        work.save_tokenizer(learn(request.spec, held, work))
    return chain(held, blocks)
