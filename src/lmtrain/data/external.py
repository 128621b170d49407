"""Another program's tokens, read in place: a data set folder that points at them.

The first use reads every byte once, for digests, document ends and the largest id, and keeps the result in a small
folder under `root`; later uses compare sizes and times. No ids are copied.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.dataset_folder import build_folder, notify
from lmtrain.data.external_formats import READERS, TokenFile
from lmtrain.data.manifest import INDEX_DTYPE, DatasetFolder, Shard, SplitManifest
from lmtrain.data.shard_writer import HashedFile, finish_folder
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.storage.hashed_folder import file_sha256
from lmtrain.tokenizers.base import Tokenizer

IDS_AT_ONCE = 1 << 22
Files = Mapping[str, Sequence[TokenFile]]  # of each split


class TokenizerSource(Protocol):
    """A source of an existing tokenizer."""

    sample_bytes: int

    def build(self, texts: Sequence[str], /) -> Tokenizer:
        """Return the tokenizer; texts are its training material."""
        ...


def external(
    *,
    format: Literal["datatrove", "llm_c", "megatron", "nanogpt", "olmo"],  # noqa: A002 (the name of the option)
    tokenizer: TokenizerSource,
    train: Sequence[str],
    validation: Sequence[str] = (),
    test: Sequence[str] = (),
    dtype: Literal["uint16", "uint32"] | None = None,
    root: str = "data",
) -> DatasetFolder:
    """Return a data set folder over token files of another program, in the order given.

    `tokenizer` is the one that made the ids; `dtype` None is the files' own, or implied by the format or the
    vocabulary.

    Raises:
        ConfigurationError: A tokenizer still to be trained.
        DataError: A file is not of the format, or holds ids beyond the tokenizer's vocabulary.
    """
    built = tokenizer_of_ids(tokenizer)
    paths = {"train": train, "validation": validation, "test": test}
    files = {
        split: [READERS[format](Path(path).expanduser(), dtype=dtype, vocab_size=built.vocab_size) for path in some]
        for split, some in paths.items()
        if some
    }
    folder = Path(root) / f"external_{format}-{_fingerprint(format, built, files)[:12]}"
    build_folder(folder, partial(_write, format, built, files))
    return DatasetFolder(open_dataset(folder).folder)


def tokenizer_of_ids(source: TokenizerSource) -> Tokenizer:
    """Return the tokenizer that made given ids; raises ConfigurationError for one that is still to be trained."""
    if source.sample_bytes:
        raise ConfigurationError(
            "tokenizer: must be the one that made the ids, as tokenizer=folder tokenizer.path=FOLDER, got one to train."
        )
    return source.build(())


def _fingerprint(format_: str, tokenizer: Tokenizer, files: Files) -> str:
    """Return a key of the files and the tokenizer, without reading them."""
    states = {
        split: [
            (str(file.path.absolute()), file.dtype, file.path.stat().st_size, file.path.stat().st_mtime_ns)
            for file in some
        ]
        for split, some in files.items()
    }
    return hashlib.sha256(json.dumps([format_, tokenizer.fingerprint, states]).encode()).hexdigest()


def _write(format_: str, tokenizer: Tokenizer, files: Files, folder: Path) -> None:
    """Fill a folder with the places of token files."""
    dtypes = {file.dtype: file.path for some in files.values() for file in some}
    if len(dtypes) > 1:
        listed = ", ".join(f"{path} has {dtype}" for dtype, path in dtypes.items())
        raise DataError(f"data.folder: all files must have ids of one type: {listed}.")
    splits = {split: _split(folder, split, some, tokenizer) for split, some in files.items()}
    finish_folder(folder, name=format_, tokenizer=tokenizer, splits=splits, dtype=next(iter(dtypes)))


def _split(folder: Path, split: str, files: Sequence[TokenFile], tokenizer: Tokenizer) -> SplitManifest:
    token_bytes = tokenizer.token_bytes()
    shards: list[Shard] = []
    text_bytes = 0
    for number, file in enumerate(files):
        notify(f"  reading {file.path} once: {file.num_tokens:,} tokens")
        num_documents = 0
        name = f"{split}_{number:05d}.index"
        with closing(HashedFile(folder / name)) as index:
            for ids, ends in _scan(file, tokenizer.end_of_text_id):
                if (largest := int(ids.max())) >= len(token_bytes):
                    rule = f"{file.path} holds id {largest:,}, beyond the tokenizer's {len(token_bytes):,} entries"
                    fix = "use its own tokenizer, or set data.folder.dtype or data.folder.format"
                    raise DataError(f"{rule}: {fix}.")
                text_bytes += int(token_bytes.take(ids).sum(dtype=np.int64))
                index.write(ends.astype(INDEX_DTYPE))
                num_documents += len(ends)
        shards.append(
            Shard(
                file=str(file.path.absolute()),
                num_tokens=file.num_tokens,
                num_documents=num_documents,
                sha256=file_sha256(file.path),
                index_sha256=index.sha256,
                offset_bytes=file.offset_bytes,
                index=name,
            )
        )
    return SplitManifest.of(shards, text_bytes=text_bytes)


def _scan(file: TokenFile, end_of_text_id: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Yield the ids in runs, with the document ends in each."""
    ids = file.ids()
    known = None if file.read_ends is None else file.read_ends()
    for start in range(0, file.num_tokens, IDS_AT_ONCE):
        run = ids[start : start + IDS_AT_ONCE]
        stop = start + len(run)
        if known is not None:
            ends = known[np.searchsorted(known, start, side="right") : np.searchsorted(known, stop, side="right")]
        else:
            ends = np.flatnonzero(run == end_of_text_id) + start + 1
            if stop == file.num_tokens and (len(ends) == 0 or ends[-1] != stop):
                ends = np.append(ends, stop)
        yield run, ends
