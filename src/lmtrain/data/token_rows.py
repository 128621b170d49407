"""A data set folder from a person's own rows of token ids: any iterable, from Python or from `data=rows`."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lmtrain.accounting.options.ranges import require_number
from lmtrain.data.dataset_folder import build_folder
from lmtrain.data.external import TokenizerSource, tokenizer_of_ids
from lmtrain.data.manifest import DatasetFolder, narrowest_dtype
from lmtrain.data.rows import require_known
from lmtrain.data.shard_writer import ShardWriter, finish_folder
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.base import Tokenizer

SHARD_TOKENS = 1 << 27


@runtime_checkable
class TokenRows(Protocol):
    """Rows of ids, readable more than once."""

    def __iter__(self) -> Iterator[Sequence[int]]:
        """Give the rows in the same order each time."""
        ...


def token_rows(
    *,
    rows: TokenRows | Callable[[], Iterable[Sequence[int]]],
    tokenizer: TokenizerSource,
    held_out_every: int = 20,
    root: str = "data",
) -> DatasetFolder:
    """Write rows once as the documents of a prepared folder, which the same rows find again.

    `rows` is an iterable or a function that returns one. Of every `held_out_every` rows the last is for validation and
    the one before for test. A row without the tokenizer's end-of-text at its end gets it.

    Raises:
        ConfigurationError: A tokenizer still to be trained, or rows that can be read only once.
        DataError: No rows, or an id beyond the tokenizer's vocabulary.
    """
    require_number("data.folder.held_out_every", held_out_every, at_least=3, usual="20")
    if isinstance(rows, Iterator):
        raise ConfigurationError("data.folder.rows: must be readable more than once; add _partial_: true.")
    made = tokenizer_of_ids(tokenizer)

    def read() -> Iterator[NDArray[np.int64]]:
        for row in rows() if callable(rows) else rows:
            ids = np.asarray(row, dtype=np.int64)
            require_known(ids, made.vocab_size)
            yield ids if ids[-1:] == made.end_of_text_id else np.append(ids, made.end_of_text_id)

    digest, num_rows = hashlib.sha256(made.fingerprint.encode()), 0
    for ids in read():
        digest.update(ids.tobytes())
        num_rows += 1
    if num_rows < held_out_every:
        raise DataError(f"data.folder.rows: must give at least {held_out_every} rows, got {num_rows}.")

    final = Path(root) / f"rows-{digest.hexdigest()[:8]}{held_out_every:04d}"
    build_folder(final, lambda folder: _write(folder, read(), made, held_out_every=held_out_every))
    return DatasetFolder(open_dataset(final).folder)


def _write(folder: Path, rows: Iterable[NDArray[np.int64]], tokenizer: Tokenizer, *, held_out_every: int) -> None:
    dtype, sizes = narrowest_dtype(tokenizer.vocab_size), tokenizer.token_bytes()
    writers: dict[str, ShardWriter] = {
        split: ShardWriter(folder, split=split, dtype=dtype, shard_tokens=SHARD_TOKENS)
        for split in ("train", "validation", "test")
    }
    text_bytes: dict[str, int] = dict.fromkeys(writers, 0)
    for number, ids in enumerate(rows):
        place = held_out_every - 1 - number % held_out_every
        split = {0: "validation", 1: "test"}.get(place, "train")
        writers[split].append(ids, np.array([len(ids)]))
        text_bytes[split] += int(sizes[ids].sum())
    splits = {split: writer.close(text_bytes=text_bytes[split]) for split, writer in writers.items()}
    finish_folder(folder, name="rows", tokenizer=tokenizer, splits=splits, dtype=dtype, held_out_every=held_out_every)
