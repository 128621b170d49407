"""Read prepared data again, every byte of it, and check it against its manifest and its tokenizer: `lmtrain verify`."""

import argparse
from collections.abc import Callable, Generator, Iterator
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
    read_index,
    size_problems,
)
from lmtrain.data.packing_index import PACKING_FOLDER
from lmtrain.data.shards import map_ids, read_manifest
from lmtrain.errors import EXIT_NO, DataError
from lmtrain.json_output import print_json
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
        print_json({folder: {"is_whole": not some, "problems": some} for folder, some in found.items()})
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
    try:
        manifest, tokenizer = read_manifest(folder), load_tokenizer(folder / TOKENIZER_FOLDER)
    except DataError as problem:
        if not (folder / MANIFEST_FILE).is_file():
            raise
        yield str(problem)
        return
    broken = [*size_problems(folder, manifest), *_unlisted(folder, manifest)]
    yield from broken
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint or tokenizer.vocab_size != manifest.vocab_size:
        yield f"{folder / TOKENIZER_FOLDER} is not the tokenizer that the ids were made with"
    elif not broken:
        for name, split in manifest.splits.items():
            yield from _split_problems(folder, name, split, manifest, tokenizer, advance)


def _unlisted(folder: Path, manifest: Manifest) -> Iterator[str]:
    files = {name for shard in manifest.shards for name in (shard.file, shard.index_file, shard.mask_file)}
    known = {MANIFEST_FILE, PACKING_FOLDER, TOKENIZER_FOLDER, *files}
    for path in sorted(folder.iterdir()):
        if path.name not in known and not path.name.startswith("."):
            yield f"{path} is not in {MANIFEST_FILE}: it belongs to no split"


def _split_problems(
    folder: Path, name: str, split: SplitManifest, manifest: Manifest, tokenizer: Tokenizer, advance: Advance
) -> Iterator[str]:
    text_bytes: int | None = 0
    for shard in split.shards:
        found = yield from _shard_problems(folder, shard, tokenizer, DTYPES[manifest.dtype], advance)
        text_bytes = None if text_bytes is None or found is None else text_bytes + found
    if text_bytes not in (None, split.text_bytes):
        yield f"the {name} split's ids stand for {text_bytes:,} bytes instead of the text's {split.text_bytes:,}"


def _shard_problems(
    folder: Path, shard: Shard, tokenizer: Tokenizer, dtype: np.dtype[Any], advance: Advance
) -> Generator[str, None, int | None]:
    """Yield a shard's defects; return the bytes of text that its ids stand for, None after a defect."""
    path, index, token_bytes = folder / shard.file, folder / shard.index_file, tokenizer.token_bytes()
    changed = [name for name, sha256 in shard.digests().items() if file_sha256(folder / name) != sha256]
    if changed:
        yield from (f"{folder / name} has changed since it was written (sha256 differs)" for name in changed)
        return None
    ids, ends, text_bytes = map_ids(folder, shard, dtype).items, read_index(folder, shard), 0
    for start in range(0, len(ids), IDS_AT_ONCE):
        some = ids[start : start + IDS_AT_ONCE]
        if (largest := int(some.max())) >= len(token_bytes):
            yield f"{path} holds id {largest}, the vocabulary has {len(token_bytes)} entries"
            return None
        text_bytes += int(token_bytes.take(some).sum(dtype=np.int64))
        advance(some.nbytes)
    if ends[-1] != len(ids) or not (np.diff(ends, prepend=0) > 0).all():
        yield f"{index} does not cut {path.name} into documents"
        return None
    if shard.is_native and (ids[ends - 1] != tokenizer.end_of_text_id).any():
        yield f"{path} has a document that does not end with end-of-text"
    elif shard.mask_sha256 is None and shard.is_native:  # conversations hold special tokens, outside every text's ids
        yield from _sample_problems(path, ids, ends, tokenizer)
    return text_bytes


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
