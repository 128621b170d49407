"""Documents to shards: encode part by part, here on all threads or in several processes, and append in order.

The result does not depend on how many processes there were.
"""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipelines.engines.local import run_jobs
from data_pipelines.stages.spool import Part
from lmtrain.data.manifest import SplitManifest
from lmtrain.data.shard_writer import ShardWriter
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer

IdsAndEnds = tuple[NDArray[np.uint32], NDArray[np.int64]]


def encode_split(
    parts: Sequence[Part],
    *,
    folder: Path,
    split: str,
    tokenizer_folder: Path,
    dtype: str,
    shard_tokens: int,
    num_processes: int,
    advance: Callable[[Part, int], object],
) -> SplitManifest:
    """Write a split's parts as shards, an end-of-text after each document.

    `num_processes` 0 encodes on this process's own threads; `advance` hears of each part and its tokens.
    """
    writer = ShardWriter(folder, split=split, dtype=dtype, shard_tokens=shard_tokens)
    encoded = (_encode_apart if num_processes else _encode_here)(parts, tokenizer_folder, num_processes)
    for part, (ids, ends) in zip(parts, encoded, strict=True):
        writer.append(ids, ends)
        advance(part, len(ids))
    return writer.close(text_bytes=sum(part.text_bytes for part in parts))


def join_documents(documents: Iterable[list[int]], *, end_of_text_id: int) -> IdsAndEnds:
    """Return documents' ids back to back, each with end-of-text behind it, and where each ends."""
    ended = [[*ids, end_of_text_id] for ids in documents]
    ends = np.cumsum([len(ids) for ids in ended], dtype=np.int64)
    return np.fromiter(chain.from_iterable(ended), dtype=np.uint32, count=int(ends[-1])), ends


def encode_part(path: Path, tokenizer: Tokenizer) -> None:
    """Encode one part on one thread and leave its ids and document ends beside it."""
    texts = (document.text for document in Part(path, 0, 0).documents())
    ids, ends = join_documents(map(tokenizer.encode, texts), end_of_text_id=tokenizer.end_of_text_id)
    np.save(_ids_of(path), ids)
    np.save(_ends_of(path), ends)


def _encode_here(parts: Sequence[Part], tokenizer_folder: Path, _: int) -> Iterator[IdsAndEnds]:
    tokenizer = load_tokenizer(tokenizer_folder)
    for part in parts:
        encoded = tokenizer.encode_batch([document.text for document in part.documents()])
        yield join_documents(encoded, end_of_text_id=tokenizer.end_of_text_id)


def _encode_apart(parts: Sequence[Part], tokenizer_folder: Path, num_processes: int) -> Iterator[IdsAndEnds]:
    jobs = [str(part.path) for part in parts]
    done = run_jobs(jobs, module=__name__, arguments=[str(tokenizer_folder)], num_processes=num_processes)
    for path in map(Path, done):
        yield np.load(_ids_of(path)), np.load(_ends_of(path))
        _ids_of(path).unlink()
        _ends_of(path).unlink()


def _ids_of(part: Path) -> Path:
    return part.with_suffix(".ids.npy")


def _ends_of(part: Path) -> Path:
    return part.with_suffix(".ends.npy")


def main(tokenizer_folder: str) -> None:
    """Encode each part named on standard input and answer its name: the worker of a process pool."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever asked is gone: go too, in silence
    tokenizer = load_tokenizer(Path(tokenizer_folder))
    for line in sys.stdin:
        encode_part(Path(line.rstrip("\n")), tokenizer)
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
