"""Read prepared data again, every byte of it, and check it against its manifest and its tokenizer: `lmtrain verify`."""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipelines.progress import stage
from lmtrain.data.manifest import (
    DTYPES,
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    Ids,
    Manifest,
    Shard,
    SplitManifest,
    manifest_from_json,
    read_index,
    size_problems,
)
from lmtrain.data.packing_index import PACKING_FOLDER
from lmtrain.data.shards import map_ids
from lmtrain.errors import EXIT_NO, DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.hashed_folder import file_sha256
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer

SAMPLED_DOCUMENTS = 8  # of each shard
SAMPLED_TOKENS = 20_000  # of one document
IDS_AT_ONCE = 1 << 16  # their derived values then stay in the core's cache

Advance = Callable[[int], object]


def verify(words: list[str], *, program: str = "lmtrain verify") -> int:
    """Print each problem on a line, or one line that all is well; the exit code is 1 where there are problems."""
    parser = argparse.ArgumentParser(prog=program, description="Verify prepared data against its checksums.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what lmtrain prepare printed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(words)
    found: dict[str, list[str]] = {}
    for folder in arguments.folders:
        with stage(f"verify {folder.name}") as progress:
            found[str(folder)] = list(problems(folder, advance=lambda read: progress.advance(text_bytes=read)))
    if arguments.json:
        print(json.dumps({folder: {"is_whole": not some, "problems": some} for folder, some in found.items()}))  # noqa: T201
    else:
        for folder, some in found.items():
            print("\n".join(some) or f"{folder} is whole")  # noqa: T201
    return EXIT_NO if any(found.values()) else 0


def problems(folder: Path, *, advance: Advance = lambda _: None) -> Iterator[str]:
    """Yield a data set's defects: nothing when every byte is as it was written.

    Checks for exactly these files, every sha256, ids below the vocabulary size, an end-of-text at every document's end,
    ids whose bytes add up to the text's, and that sampled documents encode to their ids again. `advance` gets the
    number of bytes read.

    Raises:
        DataError: The folder holds no data set at all.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        rule = "does not exist" if not folder.is_dir() else f"has no {MANIFEST_FILE}, so it is not prepared"
        raise DataError(f"data folder {folder} {rule}. Name a folder that lmtrain prepare printed.")
    try:
        manifest = manifest_from_json(foreign_json.read(path))
    except ValueError as problem:
        yield f"{path} was changed or damaged: {problem}"
        return
    try:
        tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER)
    except DataError as problem:
        yield str(problem)
        return
    if manifest.dtype not in DTYPES:
        yield f"{path} has dtype {manifest.dtype}, not {' or '.join(DTYPES)}"
        return
    broken = [*size_problems(folder, manifest), *_unlisted(folder, manifest)]
    yield from broken
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint or tokenizer.vocab_size != manifest.vocab_size:
        yield f"{folder / TOKENIZER_FOLDER} is not the tokenizer that the ids were made with"
    elif not broken:
        for name, split in manifest.splits.items():
            yield from _split_problems(folder, name, split, manifest, tokenizer, advance)


@dataclass(frozen=True)
class ShardFindings:
    """What reading all ids of a shard shows; `last_ids` are the last ids of its documents."""

    sha256: str
    largest_id: int
    text_bytes: int
    last_ids: frozenset[int]


def _unlisted(folder: Path, manifest: Manifest) -> Iterator[str]:
    files = {name for shard in manifest.shards for name in (shard.file, shard.index_file, shard.mask_file)}
    known = {MANIFEST_FILE, PACKING_FOLDER, TOKENIZER_FOLDER, *files}
    for path in sorted(folder.iterdir()):
        if path.name not in known and not path.name.startswith("."):
            yield f"{path} is not in {MANIFEST_FILE}: it belongs to no split"


def _split_problems(
    folder: Path, name: str, split: SplitManifest, manifest: Manifest, tokenizer: Tokenizer, advance: Advance
) -> Iterator[str]:
    token_bytes = tokenizer.token_bytes()
    dtype = DTYPES[manifest.dtype]
    text_bytes, is_sound = 0, True
    for shard in split.shards:
        found = _read(folder, shard, dtype, token_bytes, advance)
        text_bytes += found.text_bytes
        for problem in _shard_problems(folder, shard, found, tokenizer, dtype):
            yield problem
            is_sound = False
    if is_sound and text_bytes != split.text_bytes:
        yield f"the {name} split's ids stand for {text_bytes:,} bytes instead of the text's {split.text_bytes:,}"
    counts = (sum(shard.num_documents for shard in split.shards), sum(shard.num_tokens for shard in split.shards))
    if counts != (split.num_documents, split.num_tokens):
        yield f"the {name} split's shards have {counts[0]:,} documents and {counts[1]:,} tokens, unlike the split"


def _read(
    folder: Path, shard: Shard, dtype: np.dtype[Any], token_bytes: NDArray[Any], advance: Advance
) -> ShardFindings:
    digest, largest, text_bytes = hashlib.sha256(), 0, 0
    lasts = np.sort(read_index(folder, shard)) - 1
    last_ids: set[int] = set()
    start = 0
    with (folder / shard.file).open("rb") as file:
        digest.update(file.read(shard.offset_bytes or 0))
        while content := file.read(IDS_AT_ONCE * dtype.itemsize):
            digest.update(content)
            ids = np.frombuffer(content, dtype)
            largest = max(largest, int(ids.max()))
            if largest < len(token_bytes):
                text_bytes += int(token_bytes.take(ids).sum(dtype=np.int64))
            first, last = lasts.searchsorted((start, start + len(ids)))
            last_ids.update(np.unique(ids[lasts[first:last] - start]).tolist())
            start += len(ids)
            advance(len(content))
    return ShardFindings(digest.hexdigest(), largest, text_bytes, frozenset(last_ids))


def _shard_problems(
    folder: Path, shard: Shard, found: ShardFindings, tokenizer: Tokenizer, dtype: np.dtype[Any]
) -> Iterator[str]:
    path, index = folder / shard.file, folder / shard.index_file
    changed = [
        name
        for name, sha256 in shard.digests().items()
        if sha256 != (found.sha256 if name == shard.file else file_sha256(folder / name))
    ]
    yield from (f"{folder / name} has changed since it was written (sha256 differs)" for name in changed)
    if shard.index_file in changed:
        return
    if found.largest_id >= tokenizer.vocab_size:
        yield f"{path} holds id {found.largest_id}, the vocabulary has {tokenizer.vocab_size} entries"
        return
    ids, ends = map_ids(folder, shard, dtype).items, read_index(folder, shard)
    if ends[-1] != len(ids) or not (np.diff(ends, prepend=0) > 0).all():
        yield f"{index} does not cut {path.name} into documents"
    elif shard.is_native and found.last_ids - {tokenizer.end_of_text_id}:
        yield f"{path} has a document that does not end with end-of-text"
    elif shard.mask_sha256 is None and shard.is_native:  # conversations hold special tokens, outside every text's ids
        yield from _sample_problems(path, ids, ends, tokenizer)


def _sample_problems(path: Path, ids: Ids, ends: NDArray[np.int64], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the sampled documents whose text encodes to other ids."""
    starts = np.concatenate([np.zeros(1, np.int64), ends])
    chosen = np.unique(np.linspace(0, len(ends) - 1, SAMPLED_DOCUMENTS).astype(np.int64))
    for number in chosen.tolist():
        document = ids[starts[number] : starts[number + 1] - 1]
        if len(document) <= SAMPLED_TOKENS and not _encodes_again(document, tokenizer):
            yield f"{path}: document {number} does not encode to its ids again: they are another tokenizer's"


def _encodes_again(ids: Ids, tokenizer: Tokenizer) -> bool:
    try:
        text = tokenizer.decode_bytes(ids.tolist()).decode()
    except UnicodeDecodeError:
        return False
    return tokenizer.encode(text) == ids.tolist()
