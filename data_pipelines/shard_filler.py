"""A source's documents into the shards of a folder, block by block; after any end, the next call continues from there.

An encoded block is kept until its ids are durably in a shard. To continue, the source is read again (cheap compared
with encoding), unless it had been read to its end; encoded text is recognised by its digest.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import final

from data_pipelines.build_request import BuildRequest
from data_pipelines.engines.engine import Engine
from data_pipelines.progress import StageProgress, stage
from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.stages.append import Shards, next_link
from data_pipelines.stages.blocks import Block, LeftOut, cut_into_blocks
from data_pipelines.stages.encode import EncodedBlock, load_encoded, text_sha256_of
from data_pipelines.stages.encoders import Done, Encoders
from data_pipelines.stages.split import HeldOut, split_by_rule
from data_pipelines.stages.stage import Stage
from data_pipelines.stages.train_tokenizer import hold_blocks, learn
from data_pipelines.work_folder import Commit, End, WorkFolder
from lmtrain.data.manifest import TOKENIZER_FOLDER, SplitManifest
from lmtrain.data.shard_writer import require_whole

REMOVED = "control characters"
SHOWN = 3  # dropped documents of each reason


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
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    first: dict[str, str] = field(default_factory=dict[str, str])

    def blocks(self) -> Iterator[Block]:
        """Yield the remaining documents, in the source's order."""
        uncounted = replace(self, dropped={}, first={})
        return cut_into_blocks(split_by_rule(self.kept, uncounted.kept, held_out=self.held_out))

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
        first = {reason: f", first: {names}" for reason, names in self.first.items()}
        return [
            f"{count:,} {'removed' if reason == REMOVED else 'dropped'} ({reason}{first.get(reason, '')})"
            for reason, count in sorted(dropped.items())
        ]

    def _count(self, left_out: Counter[str], reason: str, number: int, first: str) -> None:
        left_out[reason] += number
        self.dropped[reason] = self.dropped.get(reason, 0) + number
        names = self.first.get(reason, "")
        if names.count(", ") < SHOWN - 1:
            self.first[reason] = f"{names}, {first}" if names else first


COMMIT_BLOCKS = 32


class Changed(Exception):
    """An earlier build's work is damaged, or belongs to other text."""


@dataclass(frozen=True)
class Filled:
    """The splits with whole shards, and by reason the number of dropped documents and the first ones."""

    splits: Mapping[str, SplitManifest]
    dropped: Mapping[str, int]
    first: Mapping[str, str]


@final
@dataclass(frozen=True)
class ShardFiller:
    """Reads, encodes and appends; `num_processes` None decides by cores and text.

    `print_forecast` is called once there is a tokenizer, before anything is encoded.
    """

    question: BuildRequest
    engine: Engine
    work: WorkFolder
    num_processes: int | None
    print_forecast: Callable[[], object]

    def __call__(self) -> Filled:
        """Bring every document into the shards, or those up to the budget.

        Raises:
            Changed: An earlier build's work cannot be continued.
        """
        with contextlib.closing(self._shards()) as shards:
            end = self._replay(shards) or self._stream(shards)
            self.work.write_commit(shards.commit())
            return Filled(shards.finish(), end.dropped, end.first)

    def _shards(self) -> Shards:
        settings, commit = self.question.settings, self.work.read_commit()
        try:
            if commit is not None:
                self._require_whole(commit)
            return Shards(
                self.work.folder,
                dtype=settings.token_dtype,
                shard_tokens=settings.shard_tokens,
                wanted=settings.held_out.splits,
                token_budget=settings.token_budget,
                commit=commit,
            )
        except (ValueError, FileNotFoundError) as damage:
            raise Changed(f"finished work is damaged ({damage})") from damage

    def _require_whole(self, commit: Commit) -> None:
        with stage("check finished shards") as progress:
            for shard in chain.from_iterable(written.closed for written in commit.written.values()):
                require_whole(self.work.folder, shard)
                progress.advance(tokens=shard.num_tokens)

    def _replay(self, shards: Shards) -> End | None:
        """Append the encoded blocks of a completely read source; None where there is more to read."""
        end = self.work.read_end()
        if end is None:
            return None
        for number in range(shards.next_block, end.num_blocks):
            text_sha256 = text_sha256_of(self.work.block(number))
            if text_sha256 is None:
                self.work.forget_end()
                return None
            shards.append(load_encoded(self.work.block(number)), text_sha256=text_sha256)
        return end

    def _stream(self, shards: Shards) -> End:
        question = self.question
        reading = SourcePass(
            question.source, question.stages, self.engine, question.settings.held_out, self.work.scratch
        )
        blocks = self._with_tokenizer(reading.blocks())
        encoders = Encoders(
            work=self.work,
            dtype=question.settings.token_dtype,
            num_processes=self.num_processes,
            num_cores=os.cpu_count() or 1,
        )
        is_new = shards.next_block == 0 and not self.work.block(0).exists()
        if is_new and (self.work.folder / TOKENIZER_FOLDER).is_dir():
            self.print_forecast()
        with stage("encode", total_tokens=self._total_tokens()) as progress:
            dropped = Counter[str]()
            with contextlib.closing(encoders(_not_appended(blocks, shards, dropped))) as done:
                self._append(done, shards, progress, dropped)
            if not shards.is_full:
                dropped = Counter(reading.dropped)  # also what came behind the last document
            progress.notes += reading.notes(dropped)
        end = End(shards.next_block, dict(dropped), dict(reading.first))
        self.work.write_end(end)
        return end

    def _append(self, every: Iterable[Done], shards: Shards, progress: StageProgress, dropped: Counter[str]) -> None:
        """Append encoded blocks until the last one, or until the budget is full; count the drops on the way."""
        num_committed = shards.next_block
        for done in every:
            added = shards.append(load_encoded(self.work.block(done.number)), text_sha256=done.sha256)
            last_place = max((int(encoded.places[-1]) for encoded in added.values()), default=-1)
            _count(dropped, done.left_out, up_to=last_place if shards.is_full else None)
            self._show(added, progress, was_there=done.was_there)
            if shards.is_full:
                break
            if shards.next_block - num_committed >= COMMIT_BLOCKS:
                self.work.write_commit(shards.commit())
                self.work.forget_blocks(num_committed, shards.next_block)
                num_committed = shards.next_block

    def _with_tokenizer(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Give the folder its tokenizer; return the blocks to encode."""
        spec = self.question.spec
        if (self.work.folder / TOKENIZER_FOLDER).is_dir():
            return blocks
        if spec.sample_bytes == 0:
            self.work.save_tokenizer(spec.build(()))
            return blocks
        held = hold_blocks(
            blocks,
            self.work,
            sample_bytes=spec.sample_bytes,
            budget=self.question.settings.token_budget,
            source=self.question.source,
        )
        if held.left_out:
            self.work.save_tokenizer(learn(spec, held, self.work))
        return chain(held.again(self.work), blocks)

    def _total_tokens(self) -> int | None:
        settings = self.question.settings
        if settings.token_budget is None:
            return None
        held_out = settings.held_out
        return round(settings.token_budget / (1 - held_out.validation_fraction - held_out.test_fraction))

    def _show(self, added: EncodedBlock, progress: StageProgress, *, was_there: bool) -> None:
        progress.advance(
            documents=sum(len(encoded.ends) for encoded in added.values()),
            tokens=sum(len(encoded.ids) for encoded in added.values()),
            text_bytes=int(sum(encoded.text_bytes.sum() for encoded in added.values())),
            was_there=was_there,
            fraction=None if self.question.settings.token_budget else self.question.source.fraction_read,
        )


def _count(dropped: Counter[str], left_out: LeftOut, *, up_to: int | None = None) -> None:
    """Add a block's drops before the document at place `up_to`; None for all of them."""
    for place, reasons in left_out.items():
        if up_to is None or place <= up_to:
            dropped.update(reasons)


def _not_appended(blocks: Iterator[Block], shards: Shards, dropped: Counter[str]) -> Iterator[Block]:
    """Skip the blocks that are already in the shards, if they have the same text; count their drops.

    Raises:
        Changed: They are not.
    """
    num_appended, expected = shards.next_block, shards.chain
    found = ""
    for number in range(num_appended):
        block = next(blocks, None)
        if block is None:
            raise Changed("the source gives less text than before")
        assert block.number == number, (block.number, number)
        found = next_link(found, block.sha256)
        _count(dropped, block.left_out)
    if found != expected:
        raise Changed("the source gives other text than before")
    yield from blocks
