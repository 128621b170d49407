"""Encoded blocks, in order, to the shards of their splits, up to the training document at the budget.

The held-out text is the documents before that one; a split still empty then gets its next one.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from data_pipelines.stages.encode import Encoded, EncodedBlock
from data_pipelines.stages.split import SPLITS, TRAIN
from data_pipelines.work_folder import Commit
from lmtrain.data.manifest import SplitManifest
from lmtrain.data.shard_writer import ShardWriter


@final
class Shards:
    """The shards of all splits under construction."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str,
        shard_tokens: int,
        wanted: Sequence[str],
        token_budget: int | None,
        commit: Commit | None,
    ) -> None:
        """Begin in a folder, or go on behind its last commit.

        `wanted` are the splits to fill; `token_budget` None takes everything.

        Raises:
            ValueError: The shards have changed since the commit.
            FileNotFoundError: One of them is missing.
        """
        self._wanted = wanted
        self._token_budget = token_budget
        self.next_block = commit.next_block if commit else 0
        self.chain = commit.chain if commit else ""
        self._text_bytes: dict[str, int] = {split: commit.text_bytes[split] if commit else 0 for split in SPLITS}
        self._writers = {
            split: ShardWriter(
                folder,
                split=split,
                dtype=dtype,
                shard_tokens=shard_tokens,
                written=commit.written[split] if commit else None,
            )
            for split in SPLITS
        }

    @property
    def train_tokens(self) -> int:
        """Return how many tokens there are to train on so far."""
        return self._writers[TRAIN].num_tokens

    @property
    def is_full(self) -> bool:
        """Return whether the budget is reached, with something held out."""
        is_reached = self._token_budget is not None and self.train_tokens >= self._token_budget
        return is_reached and not self._empty_splits()

    def append(self, block: EncodedBlock, *, text_sha256: str) -> EncodedBlock:
        """Add the next block's documents, up to the one at the budget; return the added ones."""
        added = self._fitting(block)
        for split, encoded in added.items():
            self._writers[split].append(encoded.ids, encoded.ends, encoded.loss_mask)
            self._text_bytes[split] += int(encoded.text_bytes.sum())
        self.next_block += 1
        self.chain = next_link(self.chain, text_sha256)
        return added

    def commit(self) -> Commit:
        """Wait until everything is on the disk, and return its description."""
        written = {split: writer.commit() for split, writer in self._writers.items()}
        return Commit(self.next_block, self.chain, written, dict(self._text_bytes))

    def finish(self) -> dict[str, SplitManifest]:
        """Finish the last shards and describe the splits with any."""
        closed = {split: writer.close(text_bytes=self._text_bytes[split]) for split, writer in self._writers.items()}
        return {split: manifest for split, manifest in closed.items() if manifest.num_documents}

    def close(self) -> None:
        """Close the files with any content."""
        for writer in self._writers.values():
            writer.abandon()

    def _fitting(self, block: EncodedBlock) -> EncodedBlock:
        if self._token_budget is None:
            return block
        place = self._last_place(block.get(TRAIN))
        if place is None:
            return block
        last = {split: max(place, int(block[split].places[0])) for split in self._empty_splits() if split in block}
        fitting = {split: encoded.up_to(last.get(split, place)) for split, encoded in block.items()}
        return {split: encoded for split, encoded in fitting.items() if len(encoded.ends)}

    def _last_place(self, train: Encoded | None) -> int | None:
        """Return the place of the document at the budget, -1 where it is full; None: not in this block."""
        assert self._token_budget is not None
        room = self._token_budget - self.train_tokens
        if room <= 0:
            return -1
        if train is None:
            return None
        last = int(np.searchsorted(train.ends, room))
        return int(train.places[last]) if last < len(train.ends) else None

    def _empty_splits(self) -> list[str]:
        return [split for split in self._wanted if self._writers[split].num_tokens == 0 and split != TRAIN]


def next_link(chain: str, text_sha256: str) -> str:
    """Return the digest of all text up to and with a block."""
    return hashlib.sha256(f"{chain} {text_sha256}".encode()).hexdigest()
