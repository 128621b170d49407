"""Damage to bytes as strangers and disks do it: to JSON by its meaning, to anything by its bytes; a guard on reading.

Strategies of hypothesis, each over a sound file. The guard bounds a reader's processor time and memory.
"""

import copy
import json
import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

CPU_SECONDS: Final = 20
MORE_BYTES: Final = 3 << 30  # of addresses, beyond those of the process as it is
DEEP: Final = "[" * 40_000
ODD: Final = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**200, 1.5, 1e308, float("nan"), float("inf"), "", "\ud800", "a\0b"),
    *("../../x", "/etc/passwd", "9" * 30, "x" * 5000, "${oc.env:HOME}", "\x1b[2J", [], {}, [[]], {"a": 1}, [1], [None]),
    *(["a"], [-1], [2**70], [{"role": "user"}], {"content": "a"}, {"": {}}, [[[[[[]]]]]]),
)
BOMBS: Final = (
    b"", b"\0", b"{", b"[]", b"null", b"1", b'"a"', b"\xff\xfe", b"{}", DEEP.encode(), b'{"a":' * 40_000,
    b"-" * 10_000, b"9" * 10_000, b"1e999", b"\xef\xbb\xbf{}", b"a: &a [*a]", b"\x80\x04.", b"PK\x03\x04", b"PAR1PAR1",
    b"\n" * 1000, b'{"a":1}\n' * 3, b"\x1f\x8b\x08", b"(" * 5000, b"!!python/object/apply:os.system [ls]",
)  # fmt: skip


@st.composite
def damaged_bytes(draw: st.DrawFn, sound: bytes) -> bytes:
    """Draw bytes cut, flipped, put in, taken out, or of nothing of the sort."""
    kind = draw(st.sampled_from(["cut", "flip", "put", "take", "number", "bomb", "binary"]))
    if kind == "bomb":
        return draw(st.sampled_from(BOMBS))
    if kind == "binary" or not sound:
        return draw(st.binary(max_size=200))
    at = draw(st.integers(0, len(sound) - 1))
    if kind == "cut":
        return sound[:at]
    if kind == "flip":
        return sound[:at] + bytes([sound[at] ^ 1 << draw(st.integers(0, 7))]) + sound[at + 1 :]
    if kind == "put":
        return sound[:at] + draw(st.binary(min_size=1, max_size=20)) + sound[at:]
    if kind == "number":
        width = draw(st.sampled_from([1, 2, 4, 8]))
        value = draw(st.sampled_from([0, 1, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]))
        return sound[:at] + (value % 256**width).to_bytes(width, "little") + sound[at + width :]
    return sound[:at] + sound[at + draw(st.integers(1, 40)) :]


@st.composite
def damaged_json(draw: st.DrawFn, sound: bytes) -> bytes:
    """Draw JSON with another value, or without one, at some place; now and then bytes that are no JSON."""
    if draw(st.integers(0, 4)) == 0:
        return draw(damaged_bytes(sound))
    content = json.loads(sound)
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(content))
        holder, key = draw(st.sampled_from(places)) if places else (None, None)
        if holder is None:
            return _written(copy.deepcopy(draw(st.sampled_from(ODD))))
        if draw(st.integers(0, 3)) == 0:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))  # else one could come to hold itself
    return _written(content)


@st.composite
def damaged_lines(draw: st.DrawFn, sound: bytes) -> bytes:
    """Draw JSON lines of which one is damaged."""
    lines = sound.splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = draw(damaged_json(lines[at]))
    return b"\n".join(lines) + draw(st.sampled_from([b"\n", b""]))


def _places(content: Any, *, most: int = 400) -> Generator[tuple[Any, Any]]:
    waiting = [content]
    while waiting and most > 0:
        holder = waiting.pop(0)
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else []
        for key in keys:
            yield holder, key
            waiting.append(holder[key])
            most -= 1


def _written(content: Any) -> bytes:
    return json.dumps(content).encode()


class TakesTooLong(Exception):
    """A reader used more processor time than any input deserves."""


@contextmanager
def guarded() -> Generator[None]:
    """Bound the processor time and the memory of what is done inside; beyond them TakesTooLong, MemoryError."""

    def stop(*_: object) -> None:
        raise TakesTooLong(f"more than {CPU_SECONDS} s of processor time")

    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (_addressed_bytes() + MORE_BYTES, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, before)


def _addressed_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
