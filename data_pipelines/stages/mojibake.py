"""Undo mojibake (UTF-8 read as Windows-1252 or Latin-1: "cafÃ©" for "café") where it is certain.

A line is put right when every one of its characters beyond ASCII belongs to a run of valid UTF-8, once read back as
bytes, and the line has one such run of three or four bytes, or two runs: one "Ã©" alone could be intended. A line with
any other character beyond ASCII is left as it is.
"""

import re

_BYTES = range(0x80, 0x100)
_FAILURE = "\ufffd"
# A byte left open by Windows-1252, and any byte read as Latin-1, shows as the character of its own number.
_BYTE_OF = {chr(byte): byte for byte in _BYTES} | {
    shown: byte for byte in _BYTES if (shown := bytes([byte]).decode("cp1252", errors="replace")) != _FAILURE
}
_TAIL = "[" + "".join(re.escape(shown) for shown, byte in _BYTE_OF.items() if byte < 0xC0) + "]"
_RUN = re.compile(f"[\xc2-\xdf]{_TAIL}|[\xe0-\xef]{_TAIL}{{2}}|[\xf0-\xf4]{_TAIL}{{3}}")
_BEYOND_ASCII = re.compile("[^\x00-\x7f]")
# The same run in UTF-8: its first character, and the first byte of the next one.
_TAIL_BYTES = b"".join(sorted({shown.encode()[:1] for shown, byte in _BYTE_OF.items() if byte < 0xC0}))
_RUN_IN_UTF_8 = re.compile(b"\xc3[\x82-\xb4][" + _TAIL_BYTES + b"]")
_TWO_BYTES = 2


def may_be_mojibake(content: bytes) -> bool:
    """Return whether UTF-8 could hold any, many times faster than by a look at the text; nearly always it does not."""
    return b"\xc3" in content and _RUN_IN_UTF_8.search(content) is not None


def undo_mojibake(text: str) -> str:
    """Return the text with the lines of certain mojibake put right, also those of double mojibake."""
    while not text.isascii() and _RUN.search(text):
        before, text = text, "\n".join(map(_undo_in_line, text.split("\n")))
        if text == before:
            break
    return text


def _undo_in_line(line: str) -> str:
    if line.isascii():
        return line
    runs = _RUN.findall(line)
    is_certain = len(runs) > 1 or (runs and len(runs[0]) > _TWO_BYTES)
    if not is_certain or len(_BEYOND_ASCII.findall(line)) != sum(map(len, runs)):
        return line
    try:
        return _RUN.sub(_decoded, line)
    except UnicodeDecodeError:
        return line


def _decoded(run: re.Match[str]) -> str:
    return bytes(_BYTE_OF[shown] for shown in run.group()).decode()
