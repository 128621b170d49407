r"""Cut texts inside their long numbers, so that an encoder of digits in threes takes them in pairs.

Two split expressions that differ in `\p{N}{1,2}` and `\p{N}{1,3}` cut every text alike but for numbers of three and
more digits. Behind each second digit of those the first one cuts in any case, and neither ever looks back: so a text
may be cut there beforehand, and the ids of the parts, back to back, are those of the text. It is worth it because
fastokens has a scanner of its own for `{1,3}` (Llama 3's expression; 215 MB/s of prose on a core of a Zen 4) and runs
any other expression by PCRE2 (43 MB/s).
"""

import copy
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPLIT_EXPRESSION = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
# The same cuts, spelled as in Llama 3's file, by which its scanner is recognised; only the digits differ.
IN_THREES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHERWISE_CUT = "\u017f"  # the long s, which is an s where letter case is ignored, to PCRE2 and Oniguruma
CHARACTERS_A_CUT = 32  # of a text with more cuts than one in so many, the parts take longer than PCRE2 does,
FEW_CUTS = 8  # unless they are few

_DIGIT, _UNKNOWN, _OTHER = b"0", b"?", b" "
_LONG = 3 * _DIGIT
_ASCII_KINDS = bytes(ord(_DIGIT if chr(byte).isdigit() else _OTHER) for byte in range(128)).ljust(256)
_LAST_KNOWN = 0x33480  # beyond the last letter that Unicode 17 assigns are tags and private characters
_NUM_CODE_POINTS = 0x110000


def in_threes(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a `tokenizer.json` with digits in threes; None where more would change."""
    steps = _steps_of(content)
    expressions = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    only_special = all(token.get("special") for token in content.get("added_tokens") or [])
    if expressions != [SPLIT_EXPRESSION] or content.get("normalizer") is not None or not only_special:
        return None
    made = {name: part if name == "model" else copy.deepcopy(part) for name, part in content.items()}
    for step in _steps_of(made):
        if step["type"] == "Split":
            step["pattern"] = {"Regex": IN_THREES}
    return made


def cut_numbers(text: str) -> list[str] | None:
    """Return the parts of a text, itself where no number is long; None: too many, or unknown characters."""
    kinds = _kinds_of(text)
    place = kinds.find(_LONG)
    if place < 0:
        return None if _UNKNOWN in kinds else [text]
    parts: list[str] = []
    start = 0
    while place >= 0:
        end = place + 2
        parts.append(text[start:end])
        start, place = end, kinds.find(_LONG, end)
    if len(parts) > max(FEW_CUTS, len(text) // CHARACTERS_A_CUT) or _UNKNOWN in kinds:
        return None
    parts.append(text[start:])
    return parts


def ends_of_texts(ends: NDArray[np.int64], num_parts: Sequence[int]) -> NDArray[np.int64]:
    """Return where the ids of each text end, given where those of each part do."""
    return ends[np.cumsum(num_parts, dtype=np.int64) - 1]


def _kinds_of(text: str) -> bytes:
    """Return a byte a character: a number, another one, or one of no table here."""
    if text.isascii():
        return text.encode().translate(_ASCII_KINDS)
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return _kinds().take(codes).tobytes()


@cache
def _kinds() -> NDArray[np.uint8]:
    """Return the kind of every code point; one without a meaning yet may be a number to a newer table."""
    kinds = np.full(_NUM_CODE_POINTS, ord(_UNKNOWN), dtype=np.uint8)
    of_category = {"N": ord(_DIGIT), "C": ord(_UNKNOWN)}
    for code in range(_LAST_KNOWN):
        category = unicodedata.category(chr(code))
        kinds[code] = ord(_OTHER) if category in {"Cc", "Cf"} else of_category.get(category[0], ord(_OTHER))
    kinds[ord(OTHERWISE_CUT)] = ord(_UNKNOWN)
    return kinds


def _steps_of(content: Mapping[str, Any]) -> list[Any]:
    steps = content.get("pre_tokenizer") or {}
    return steps.get("pretokenizers", [steps]) if steps else []
