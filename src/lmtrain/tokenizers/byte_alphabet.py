"""The printable character for each byte in a byte-level `tokenizer.json`.

GPT-2's table (https://github.com/openai/gpt-2): printable Latin-1 stands for itself, the other bytes for U+0100 onward.
"""

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

CHARACTER_OF_BYTE = tuple(chr(byte) if byte in _PRINTABLE else chr(256 + _OTHERS.index(byte)) for byte in range(256))
BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(CHARACTER_OF_BYTE)}


def bytes_of(token: str) -> bytes:
    """Return the bytes of a vocabulary entry. KeyError when it is not byte-level."""
    return bytes(map(BYTE_OF_CHARACTER.__getitem__, token))
