"""A learning tokenizer: hold the first blocks on disk, learn from a sample of them, go on with them.

The sample is drawn by a hash of the documents' names from the first text of four times its size: a stream need not be
read to its end, and a corpus of up to that size gives a sample of all of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import final

from data_pipelines.progress import stage
from data_pipelines.sources.base import Source
from data_pipelines.stages.blocks import Block, LeftOut, load_block, num_bytes
from data_pipelines.stages.split import TRAIN, place_of
from data_pipelines.stages.stage import content_of
from data_pipelines.stages.train_tokenizer import TokenizerSpec
from data_pipelines.work_folder import WorkFolder
from lmtrain.accounting.training_plan.stages import HELD_FOR_LEARNING
from lmtrain.tokenizers.base import Tokenizer

BYTES_PER_TOKEN = 8  # text has fewer: so much of it is more than a budget takes
WELL_USED = 0.9


@final
@dataclass(frozen=True)
class Held:
    """Blocks on the disk: the omissions of each, and the bytes of their training text."""

    left_out: Mapping[int, LeftOut]
    train_bytes: int

    def texts(self, work: WorkFolder) -> Iterator[tuple[str, str]]:
        """Yield each training document's name and text."""
        return chain.from_iterable(_train_texts(load_block(work.raw(number))) for number in self.left_out)

    def again(self, work: WorkFolder) -> Iterator[Block]:
        """Yield the blocks, and free their room."""
        for number, left_out in self.left_out.items():
            block = load_block(work.raw(number), number=number, left_out=left_out)
            work.raw(number).unlink()
            yield block


def hold_blocks(
    blocks: Iterator[Block],
    work: WorkFolder,
    *,
    sample_bytes: int,
    budget: int | None,
    source: Source | None = None,
) -> Held:
    """Write blocks to the disk until they have text enough to draw a sample from, or end.

    A budget of tokens bounds the reading beyond it. The progress is that of the sample, or of a smaller `source`.
    """
    wanted = (
        HELD_FOR_LEARNING * sample_bytes
        if budget is None
        else min(HELD_FOR_LEARNING * sample_bytes, BYTES_PER_TOKEN * budget)
    )
    left_out: dict[int, LeftOut] = {}
    train_bytes = 0
    with stage("read") as progress:
        while train_bytes < wanted and (block := next(blocks, None)) is not None:
            block.save(work.raw(block.number))
            left_out[block.number] = block.left_out
            train_bytes += sum(num_bytes(text) for _, text in _train_texts(block))
            read_bytes = sum(num_bytes(content_of(document)) for document in block.documents)
            share = max(train_bytes / wanted, (source and source.fraction_read) or 0.0)
            progress.advance(documents=len(block.documents), text_bytes=read_bytes, fraction=share)
    return Held(left_out, train_bytes)


def learn(spec: TokenizerSpec, held: Held, work: WorkFolder) -> Tokenizer:
    """Return the tokenizer of the held blocks' training text."""
    fraction = min(1.0, spec.sample_bytes / max(held.train_bytes, 1))
    with stage("tokenizer") as progress:
        sample = (text for name, text in held.texts(work) if fraction == 1 or place_of(f"sample {name}") < fraction)
        tokenizer = spec.build(sample)
        num_used = sum(1 for piece in tokenizer.bytes_of_ids() if piece)
        progress.notes.append(f"{tokenizer.vocab_size:,} entries")
        if num_used < WELL_USED * tokenizer.vocab_size:
            progress.notes.append(f"only {num_used:,} in use: so little text needs no more, see tokenizer.vocab_size")
    return tokenizer


def _train_texts(block: Block) -> Iterator[tuple[str, str]]:
    for split, document in zip(block.splits, block.documents, strict=True):
        if split == TRAIN:
            yield document.id, content_of(document)
