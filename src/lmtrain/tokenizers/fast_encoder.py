r"""A faster encoder that gives the same ids, used only where it was compared with `tokenizers`.

fastokens (https://github.com/crusoecloud/fastokens, Apache-2.0) reads the same `tokenizer.json` as `tokenizers` and is
many times faster. It is compared on texts with difficult cuts and on the first texts of every run; where one id
differs, or it is not installed or cannot read the file, `tokenizers` encodes.

fastokens has a scanner for Llama 3's split expression, with digits in threes (215 MB/s of prose on a core of a Zen 4),
and runs any other expression by PCRE2 (43 MB/s). Ours differs only in `\p{N}{1,2}`: it cuts every text alike but for
numbers of three and more digits. It cuts those behind each second digit and neither expression looks back, so a text
may be cut there beforehand, and the ids of the parts, back to back, are those of the text.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import one_line
from lmtrain.tokenizers.base import FlatIds, flatten, reject_panics

SAMPLE_BYTES = 1_000_000
MOST_CHARACTERS = 100_000  # of one text, compared
OTHERWISE_CUT = "\u180e"  # white space to fastokens' expressions (PCRE2), not to those of `tokenizers` (Oniguruma)
LONG_S = "\u017f"  # an s where letter case is ignored, to PCRE2 and Oniguruma but not to the scanner
FAILED = "fastokens cannot encode this text"
SLOWER = "tokenizers encodes, which is slower"

SPLIT_EXPRESSION = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
# The same cuts, spelled as in Llama 3's file, by which the scanner is chosen; only the digits differ.
IN_THREES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HARD_TEXTS = (
    "I'll pay 12345,67 for_it  now!!\n\n \tDON'T  \r\n\r\n\u00a0x\u2003y \u3000\u200bz\x00\x1f\x7f\u0085\u2028 ",
    "Stra\u00dfe nai\u0308ve e\u0301 \u0130 \u01c5 \u017f \ufb01 \u65e5\u672c\u3001\u8a9e \ud55c\uad6d \u0e20\u0e32 ",
    "\u0639\u0631\u0628 \u0939\u093f\u0928\u094d\u0926\u0940 \U0001f469\u200d\U0001f680\ufe0f \ufeff\ufffd\U0010ffff",
    "\u0663\u0664 \u2167 \u00bd \u00b2 \u2460\u2461 1\u066b5 '\u2019s 'S 'LL x='re' a'b",
    "   " * 30 + "=" * 200 + "\n" * 40 + "a" * 300 + "ab" * 300 + "0" * 70 + " \n" * 9 + "\t\t",
)

_DIGIT, _UNKNOWN, _OTHER = b"0", b"?", b" "
_LONG = 3 * _DIGIT
_ASCII_KINDS = bytes(ord(_DIGIT if chr(byte).isdigit() else _OTHER) for byte in range(128)).ljust(256)
_LAST_KNOWN = 0x33480  # beyond the last letter that Unicode 17 assigns are tags and private characters
_NUM_CODE_POINTS = 0x110000


@final
class FastEncoder:
    """Encodes batches into flat ids: by fastokens once its ids were compared, else by the reference."""

    def __init__(
        self,
        tokenizer_json: str,
        *,
        reference: Callable[[Sequence[str]], list[list[int]]],
        special_tokens: Mapping[str, int],
        odd_characters: str = "",
    ) -> None:
        """Read the tokenizer, if fastokens can.

        `reference` decides which ids are right; it also encodes the texts with `odd_characters`, and those whose fast
        ids hold one of `special_tokens`.
        """
        self._reference = reference
        self._odd = OTHERWISE_CUT + odd_characters
        self._is_special = np.zeros(max(special_tokens.values(), default=0) + 2, dtype=np.bool_)
        self._is_special[list(special_tokens.values())] = True
        self._unchecked_bytes = SAMPLE_BYTES
        in_threes = _in_threes(foreign_json.parse(tokenizer_json))
        self._cuts_numbers = in_threes is not None
        self._fast = _load_fastokens(tokenizer_json if in_threes is None else json.dumps(in_threes))
        self._check([*HARD_TEXTS, *special_tokens, f"a{' '.join(special_tokens)}\n"])

    @property
    def is_fast(self) -> bool:
        """Return whether fastokens encodes."""
        return self._fast is not None

    def __call__(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back, and where each text's end."""
        if self._unchecked_bytes > 0:
            self._check_first(texts)
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> FlatIds:
        if self._fast is None or not texts:
            return flatten(self._reference(texts))
        parts = [self._parts_of(text) for text in texts]
        odd = [place for place, of_text in enumerate(parts) if of_text is None]
        if not odd:
            ids, ends = _flat(self._fast, [part for of_text in parts for part in of_text or ()])
            ends = ends[np.cumsum([len(of_text or ()) for of_text in parts], dtype=np.int64) - 1]
            special = np.flatnonzero(self._is_special.take(ids, mode="clip"))  # the last entry is False
            if len(special) == 0:
                return ids, ends
            odd = np.unique(np.searchsorted(ends, special, side="right")).tolist()
        return self._encode_around(odd, texts)

    def _encode_around(self, odd: Iterable[int], texts: Sequence[str]) -> FlatIds:
        """Encode the texts at the `odd` places by the reference, and the rest as usual."""
        is_odd = np.zeros(len(texts), dtype=np.bool_)
        is_odd[list(odd)] = True
        lengths = np.empty(len(texts), dtype=np.int64)
        encoded: list[tuple[NDArray[np.bool_], NDArray[np.uint32]]] = []
        for these, encode in ((~is_odd, self._encode), (is_odd, lambda some: flatten(self._reference(some)))):
            places = np.flatnonzero(these)
            if len(places):
                ids, ends = encode([texts[place] for place in places.tolist()])
                lengths[places] = np.diff(ends, prepend=0)
                encoded.append((these, ids))
        joined = np.empty(int(lengths.sum()), dtype=np.uint32)
        for these, ids in encoded:
            joined[np.repeat(these, lengths)] = ids
        return joined, np.cumsum(lengths)

    def _parts_of(self, text: str) -> list[str] | None:
        if not text.isascii() and any(character in text for character in self._odd):
            return None
        return cut_numbers(text) if self._cuts_numbers else [text]

    def _check_first(self, texts: Sequence[str]) -> None:
        sample: list[str] = []
        for text in texts:
            if self._unchecked_bytes <= 0:
                break
            sample.append(text[:MOST_CHARACTERS])
            self._unchecked_bytes -= len(sample[-1].encode())
        self._check(sample)

    def _check(self, texts: list[str]) -> None:
        if self._fast is None or not texts:
            return
        (ids, ends), (found, found_ends) = flatten(self._reference(texts)), self._encode(texts)
        if not (np.array_equal(ids, found) and np.array_equal(ends, found_ends)):
            _notify(f"fastokens gives other ids than tokenizers for this tokenizer: {SLOWER}")
            self._fast = None


def cut_numbers(text: str) -> list[str] | None:
    """Return the parts of a text, cut behind each second digit of long numbers; None for unknown characters."""
    if text.isascii():
        kinds = text.encode().translate(_ASCII_KINDS)
    else:
        kinds = _kinds().take(np.frombuffer(text.encode("utf-32-le"), dtype="<u4")).tobytes()
        if _UNKNOWN in kinds:
            return None
    parts: list[str] = []
    start = 0
    while (place := kinds.find(_LONG, start)) >= 0:
        parts.append(text[start : place + 2])
        start = place + 2
    return [*parts, text[start:]]


@cache
def _kinds() -> NDArray[np.uint8]:
    """Return the kind of every code point; one without a meaning yet may be a number to a newer table."""
    kinds = np.full(_NUM_CODE_POINTS, ord(_UNKNOWN), dtype=np.uint8)
    of_category = {"N": ord(_DIGIT), "C": ord(_UNKNOWN)}
    for code in range(_LAST_KNOWN):
        category = unicodedata.category(chr(code))
        kinds[code] = ord(_OTHER) if category in {"Cc", "Cf"} else of_category.get(category[0], ord(_OTHER))
    kinds[ord(LONG_S)] = ord(_UNKNOWN)
    return kinds


def _in_threes(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a `tokenizer.json` with digits in threes; None where other cuts would change."""
    steps = content.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps]) if steps else []
    expressions = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    only_special = all(token.get("special") for token in content.get("added_tokens") or [])
    if expressions != [SPLIT_EXPRESSION] or content.get("normalizer") is not None or not only_special:
        return None
    split = {"pattern": {"Regex": IN_THREES}}
    made = [{**step, **split} if step["type"] == "Split" else step for step in steps]
    return {**content, "pre_tokenizer": {"type": "Sequence", "pretokenizers": made}}


def _load_fastokens(tokenizer_json: str) -> Any:
    """Return fastokens' tokenizer, or None after a line with the reason."""
    # Its own threads wait for work by spinning: with one, a core encodes 250 instead of 150 MB/s (0.3.5).
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    try:
        import fastokens
    except ImportError:
        _notify(f"fastokens is not installed: {SLOWER}; pip install fastokens")
        return None
    try:
        with reject_panics("fastokens cannot read this tokenizer"):
            return fastokens.Tokenizer.from_json_str(tokenizer_json)
    except Exception as problem:  # noqa: BLE001  # `tokenizers` can read every file that it cannot
        _notify(f"fastokens cannot read this tokenizer ({one_line(problem)}): {SLOWER}")
        return None


def _flat(encoder: Any, texts: Sequence[str]) -> FlatIds:
    with reject_panics(FAILED):
        try:
            ids, ends = encoder.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        except ValueError as problem:  # PCRE2 gives up on a match
            raise DataError(f"{FAILED}: {one_line(problem)}; use another tokenizer.") from problem
    return np.frombuffer(ids, dtype="<u4"), np.frombuffer(ends, dtype="<u8")[1:].astype(np.int64)


def _notify(line: str) -> None:
    sys.stderr.write(f"{line}\n")
