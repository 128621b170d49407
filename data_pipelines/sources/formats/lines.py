"""A stream of bytes as lines, without ever holding more than the longest allowed one."""

from collections.abc import Iterator

from data_pipelines.sources.compression import PlainBytes

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 64_000_000


def numbered_lines(content: PlainBytes, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number from 1, without its end; None for a line too long."""
    number = 1
    pieces: list[bytes] = []
    num_held = 0
    while chunk := content.read(CHUNK_BYTES):
        first, *others = chunk.split(b"\n")
        if not others:
            rest = first
        else:
            yield number, _joined([*pieces, first], num_held + len(first), max_bytes)
            *whole, rest = others
            for number, line in enumerate(whole, start=number + 1):  # noqa: B020 (counts on)
                yield number, line.removesuffix(b"\r") if len(line) <= max_bytes else None
            number += 1
            pieces, num_held = [], 0
        num_held += len(rest)
        pieces = [*pieces, rest] if num_held <= max_bytes else []
    if num_held:
        yield number, _joined(pieces, num_held, max_bytes)


def _joined(pieces: list[bytes], num_bytes: int, max_bytes: int) -> bytes | None:
    if num_bytes > max_bytes:
        return None
    line = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return line.removesuffix(b"\r")
