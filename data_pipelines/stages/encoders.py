"""Blocks to encoded blocks, in order: on a second thread, or in several processes.

Run as a module it is a worker: it encodes each block named on standard input and answers the name.
"""

import contextlib
import signal
import sys
import uuid
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import final

from data_pipelines.processes import run_jobs
from data_pipelines.stages.blocks import Block, LeftOut, load_block
from data_pipelines.stages.encode import encode_block, save_encoded, text_sha256_of
from data_pipelines.work_folder import WorkFolder
from lmtrain.tokenizers.base import Tokenizer

BLOCKS_AHEAD = 2  # being encoded while the next one is read
MANY_BLOCKS = 16  # from which on processes are worth their start
MANY_CORES = 4  # below, one thread reads and one encodes


@dataclass(frozen=True)
class Done:
    """An encoded block on the disk; its digest, its omissions, whether an earlier build encoded it."""

    number: int
    sha256: str
    left_out: LeftOut
    was_there: bool = False


@final
@dataclass(frozen=True)
class Encoders:
    """Encodes blocks not encoded yet; `num_processes` None decides by cores and text."""

    work: WorkFolder
    dtype: str
    num_processes: int | None
    num_cores: int

    def __call__(self, blocks: Iterable[Block]) -> Generator[Done, None, None]:
        """Yield each block once it is encoded, in order."""
        if self.num_processes is not None:
            return self._apart(blocks, self.num_processes) if self.num_processes else self._here(blocks)
        if self.num_cores < MANY_CORES:
            return self._here(blocks)
        blocks = iter(blocks)
        first = list(islice(blocks, MANY_BLOCKS))
        is_much = len(first) == MANY_BLOCKS
        every = chain(_taken(first), blocks)
        return self._apart(every, self.num_cores - 1) if is_much else self._here(every)

    def _here(self, blocks: Iterable[Block]) -> Generator[Done, None, None]:
        pending: deque[tuple[Done, Future[None] | None]] = deque()
        executor = ThreadPoolExecutor(max_workers=1)
        try:
            for block in blocks:
                is_there = self._is_there(block)
                future = None if is_there else executor.submit(self._encode, block, self.work.tokenizer())
                pending.append((_done(block, was_there=is_there), future))
                if len(pending) > BLOCKS_AHEAD:
                    yield _result(*pending.popleft())
            while pending:
                yield _result(*pending.popleft())
        finally:
            executor.shutdown(cancel_futures=True)

    def _apart(self, blocks: Iterable[Block], num_processes: int) -> Generator[Done, None, None]:
        pending: deque[Done] = deque()
        owner = uuid.uuid4().hex  # workers of a killed build may live on for a block

        def jobs() -> Iterator[str]:
            for block in blocks:
                is_there = self._is_there(block)
                if not is_there:
                    block.save(self.work.raw(block.number, owner))
                pending.append(_done(block, was_there=is_there))
                yield str(block.number)

        arguments = [str(self.work.folder), self.dtype, owner]
        answers = run_jobs(jobs(), module=__name__, arguments=arguments, num_processes=num_processes)
        for _ in answers:
            done = pending.popleft()
            # A failed worker's block is encoded here, or fails here, where the error can be reported.
            encode_waiting(done.number, self.work, dtype=self.dtype, owner=owner)
            yield done

    def _is_there(self, block: Block) -> bool:
        return text_sha256_of(self.work.block(block.number)) == block.sha256

    def _encode(self, block: Block, tokenizer: Tokenizer) -> None:
        encoded = encode_block(block, tokenizer, dtype=self.dtype)
        save_encoded(encoded, self.work.block(block.number), text_sha256=block.sha256)


def _done(block: Block, *, was_there: bool) -> Done:
    return Done(block.number, block.sha256, block.left_out, was_there)


def _result(done: Done, future: Future[None] | None) -> Done:
    if future is not None:
        future.result()
    return done


def _taken(blocks: list[Block]) -> Iterator[Block]:
    """Yield the blocks of a list and let go of each."""
    blocks.reverse()
    while blocks:
        yield blocks.pop()


def encode_waiting(number: int, work: WorkFolder, *, dtype: str, owner: str) -> None:
    """Encode one block from its text on the disk, if it is not encoded yet."""
    raw = work.raw(number, owner)
    if raw.exists():
        block = load_block(raw, number=number)
        save_encoded(encode_block(block, work.tokenizer(), dtype=dtype), work.block(number), text_sha256=block.sha256)
        raw.unlink()


def main(folder: str, dtype: str, owner: str) -> None:
    """Answer each block number on standard input once it is encoded, or has turned out not to be possible here."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever asked is gone: go too, in silence
    work = WorkFolder(Path(folder))
    work.tokenizer()
    for line in sys.stdin:
        with contextlib.suppress(Exception):  # the asking process repeats it, and reports the error
            encode_waiting(int(line), work, dtype=dtype, owner=owner)
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
