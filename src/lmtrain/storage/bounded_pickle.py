"""Look through a pickle before it is loaded: ten bytes of one can ask Python for gigabytes.

LONG_BINPUT takes a place in a table that Python then makes so large, and a counted string's room is made before its
bytes are looked for (CPython 3.13, Modules/_pickle.c).
"""

import pickletools
from pickle import UnpicklingError
from typing import Final

LENGTHS: Final = {ord(each.code): each.arg.n if each.arg else 0 for each in pickletools.opcodes}
LINES: Final = {ord("c"): 2, ord("i"): 2}  # GLOBAL and INST take two, others one
COUNT_BYTES: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
PUT, LONG_BINPUT, STOP = ord("p"), ord("r"), ord(".")


def require_bounded(content: bytes) -> None:
    """Refuse a pickle that asks for more than its own length.

    Raises:
        UnpicklingError: It does, or is cut off.
    """
    at = 0
    while at < len(content):
        code = content[at]
        if code == STOP:
            return
        length = LENGTHS.get(code)
        if length is None or code == PUT:  # PUT is of protocol 0, which nobody writes any more
            raise UnpicklingError(f"it has an unknown instruction, {code:#x}")
        at += 1
        if code == LONG_BINPUT and int.from_bytes(content[at : at + 4], "little") > len(content):
            raise UnpicklingError("it asks for a table longer than itself")
        at = _after(content, at, code, length)
    raise UnpicklingError("it is cut off")


def _after(content: bytes, at: int, code: int, length: int) -> int:
    """Return the place behind an instruction's argument; one beyond the end asks for more than there is."""
    if length >= 0:
        return at + length
    if num_bytes := COUNT_BYTES.get(length):
        return at + num_bytes + int.from_bytes(content[at : at + num_bytes], "little")
    for _ in range(LINES.get(code, 1)):
        found = content.find(b"\n", at)
        at = len(content) if found < 0 else found + 1
    return at
