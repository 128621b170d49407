"""A faster encoder of the same ids, adopted only where it is seen to give them.

fastokens (https://github.com/crusoecloud/fastokens, Apache-2.0) reads the same `tokenizer.json` as `tokenizers` and is
many times faster. It is held against `tokenizers` on texts that are hard to cut and then on the first texts of every
run; where one id differs, or it is not installed or cannot read the file, `tokenizers` does the work.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

FlatIds = tuple[NDArray[np.uint32], NDArray[np.int64]]
Encode = Callable[[Sequence[str]], list[list[int]]]

SAMPLE_BYTES = 1_000_000
MOST_CHARACTERS = 100_000  # of one text that are compared
OTHERWISE_CUT = "\u180e"  # white space to fastokens' expressions (PCRE2), not to those of `tokenizers` (Oniguruma)
HARD_TEXTS = (
    "I'll pay 12345,67 for_it  now!!\n\n \tDON'T  \r\n\r\n\u00a0x\u2003y \u3000\u200bz\x00\x1f\x7f\u0085\u2028 ",
    "Stra\u00dfe nai\u0308ve e\u0301 \u0130 \u01c5 \u017f \ufb01 \u65e5\u672c\u3001\u8a9e \ud55c\uad6d \u0e20\u0e32 ",
    "\u0639\u0631\u0628 \u0939\u093f\u0928\u094d\u0926\u0940 \U0001f469\u200d\U0001f680\ufe0f \ufeff\ufffd\U0010ffff",
    "\u0663\u0664 \u2167 \u00bd \u00b2 \u2460\u2461 1\u066b5 '\u2019s 'S 'LL x='re' a'b",
    "   " * 30 + "=" * 200 + "\n" * 40 + "a" * 300 + "ab" * 300 + "0" * 70 + " \n" * 9 + "\t\t",
)


def flatten(encoded: Sequence[Sequence[int]]) -> FlatIds:
    """Return the ids of all texts back to back, and where each text's end."""
    ends = np.cumsum([len(ids) for ids in encoded], dtype=np.int64)
    return np.fromiter(chain.from_iterable(encoded), dtype=np.uint32, count=int(ends[-1]) if len(ends) else 0), ends


@final
class FastEncoder:
    """Encodes batches into flat ids: by fastokens once it has proven itself, else by the reference."""

    def __init__(
        self, tokenizer_json: str, *, reference: Encode, special_tokens: Mapping[str, int], odd_characters: str = ""
    ) -> None:
        """Try to read the tokenizer.

        `reference` decides which ids are right; it also encodes the texts with `odd_characters`, and those whose
        fast ids hold one of `special_tokens`.
        """
        self._reference = reference
        self._odd = OTHERWISE_CUT + odd_characters
        self._is_special = np.zeros(max(special_tokens.values(), default=0) + 2, dtype=np.bool_)
        self._is_special[list(special_tokens.values())] = True
        self._unchecked_bytes = SAMPLE_BYTES
        self._fast, notice = _load(tokenizer_json)
        if self._fast is None:
            tell(notice)
        else:
            self._check([*HARD_TEXTS, *special_tokens, f"a{' '.join(special_tokens)}\n"])

    @property
    def is_fast(self) -> bool:
        """Tell whether fastokens does the work."""
        return self._fast is not None

    def __call__(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back, and where each text's end."""
        if self._unchecked_bytes > 0:
            self._check_first(texts)
        if self._fast is None:
            return flatten(self._reference(texts))
        odd = [index for index, text in enumerate(texts) if not text.isascii() and self._is_odd(text)]
        return self._encode_around(odd, texts) if odd else self._encode_fast(texts)

    def _is_odd(self, text: str) -> bool:
        return any(character in text for character in self._odd)  # a search for one is faster than any expression

    def _encode_fast(self, texts: Sequence[str]) -> FlatIds:
        if self._fast is None or not texts:
            return flatten(self._reference(texts))
        buffers = self._fast.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        ids, ends = np.frombuffer(buffers[0], dtype="<u4"), np.frombuffer(buffers[1], dtype="<u8")[1:].astype(np.int64)
        special = np.flatnonzero(
            self._is_special.take(ids, mode="clip")
        )  # ids beyond the last special one fall on False
        if len(special) == 0:
            return ids, ends
        return self._encode_around(np.unique(np.searchsorted(ends, special, side="right")).tolist(), texts)

    def _check_first(self, texts: Sequence[str]) -> None:
        sample: list[str] = []
        for text in texts:
            if self._unchecked_bytes <= 0:
                break
            sample.append(text[:MOST_CHARACTERS].translate(dict.fromkeys(map(ord, self._odd))))
            self._unchecked_bytes -= len(sample[-1].encode())
        self._check(sample)

    def _check(self, texts: list[str]) -> None:
        if self._fast is not None and texts and not _equal(flatten(self._reference(texts)), self._encode_fast(texts)):
            self._fast = None
            tell("fastokens gives other ids than tokenizers for this tokenizer: tokenizers encodes, which is slower")

    def _encode_around(self, odd: list[int], texts: Sequence[str]) -> FlatIds:
        pieces: list[FlatIds] = []
        start = 0
        for index in odd:
            pieces += [self._encode_fast(texts[start:index]), flatten(self._reference([texts[index]]))]
            start = index + 1
        return _join([*pieces, self._encode_fast(texts[start:])])


def tell(notice: str) -> None:
    """Say one line to the person who waits."""
    sys.stderr.write(f"{notice}\n")


def _load(tokenizer_json: str) -> tuple[Any, str]:
    try:
        import fastokens
    except ImportError:
        return None, "fastokens is not installed: tokenizers encodes, which is slower; pip install fastokens"
    try:
        return fastokens.Tokenizer.from_json_str(tokenizer_json), ""
    except Exception as problem:  # noqa: BLE001  # whatever it cannot read, `tokenizers` can
        return None, f"fastokens cannot read this tokenizer ({problem}): tokenizers encodes, which is slower"


def _equal(one: FlatIds, other: FlatIds) -> bool:
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def _join(pieces: Sequence[FlatIds]) -> FlatIds:
    starts = np.cumsum([0, *(len(ids) for ids, _ in pieces)])
    ends = [ends + start for (_, ends), start in zip(pieces, starts[:-1], strict=True)]
    return np.concatenate([ids for ids, _ in pieces]), np.concatenate(ends)
