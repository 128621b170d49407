"""A faster encoder of the same ids, adopted only where it is seen to give them.

fastokens (https://github.com/crusoecloud/fastokens, Apache-2.0) reads the same `tokenizer.json` as `tokenizers` and is
many times faster. It is held against `tokenizers` on texts with difficult cuts and then on the first texts of every
run; where one id differs, or it is not installed or cannot read the file, `tokenizers` does the work.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from lmtrain.tokenizers.fastokens_ids import FastokensIds, load_fastokens
from lmtrain.tokenizers.flat_ids import Encode, FlatIds, encode_around, flatten

SAMPLE_BYTES = 1_000_000
MOST_CHARACTERS = 100_000  # of one text, compared
OTHERWISE_CUT = "\u180e"  # white space to fastokens' expressions (PCRE2), not to those of `tokenizers` (Oniguruma)
HARD_TEXTS = (
    "I'll pay 12345,67 for_it  now!!\n\n \tDON'T  \r\n\r\n\u00a0x\u2003y \u3000\u200bz\x00\x1f\x7f\u0085\u2028 ",
    "Stra\u00dfe nai\u0308ve e\u0301 \u0130 \u01c5 \u017f \ufb01 \u65e5\u672c\u3001\u8a9e \ud55c\uad6d \u0e20\u0e32 ",
    "\u0639\u0631\u0628 \u0939\u093f\u0928\u094d\u0926\u0940 \U0001f469\u200d\U0001f680\ufe0f \ufeff\ufffd\U0010ffff",
    "\u0663\u0664 \u2167 \u00bd \u00b2 \u2460\u2461 1\u066b5 '\u2019s 'S 'LL x='re' a'b",
    "   " * 30 + "=" * 200 + "\n" * 40 + "a" * 300 + "ab" * 300 + "0" * 70 + " \n" * 9 + "\t\t",
)


@final
class FastEncoder:
    """Encodes batches into flat ids: by fastokens once it has proven itself, else by the reference."""

    def __init__(
        self, tokenizer_json: str, *, reference: Encode, special_tokens: Mapping[str, int], odd_characters: str = ""
    ) -> None:
        """Try to read the tokenizer.

        `reference` decides on the right ids; it also encodes the texts with `odd_characters`, and those whose fast ids
        hold one of `special_tokens`.
        """
        self._reference = reference
        self._odd = OTHERWISE_CUT + odd_characters
        self._is_special = np.zeros(max(special_tokens.values(), default=0) + 2, dtype=np.bool_)
        self._is_special[list(special_tokens.values())] = True
        self._unchecked_bytes = SAMPLE_BYTES
        self._json = tokenizer_json
        self._fast: FastokensIds | None = None
        self._adopt(load_fastokens(tokenizer_json))
        self._check([*HARD_TEXTS, *special_tokens, f"a{' '.join(special_tokens)}\n"])

    @property
    def is_fast(self) -> bool:
        """Return whether fastokens does the work."""
        return self._fast is not None

    def __call__(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back, and where each text's end."""
        if self._unchecked_bytes > 0:
            self._check_first(texts)
        if self._fast is None:
            return self._encode_slowly(texts)
        odd = [index for index, text in enumerate(texts) if not text.isascii() and self._is_odd(text)]
        return self._encode_around(odd, texts) if odd else self._encode_fast(texts)

    def _is_odd(self, text: str) -> bool:
        return any(character in text for character in self._odd)  # a search for one is faster than any expression

    def _encode_fast(self, texts: Sequence[str]) -> FlatIds:
        if self._fast is None or not texts:
            return self._encode_slowly(texts)
        ids, ends = self._fast(texts)
        special = np.flatnonzero(
            self._is_special.take(ids, mode="clip")
        )  # ids beyond the last special one fall on False
        if len(special) == 0:
            return ids, ends
        return self._encode_around(np.unique(np.searchsorted(ends, special, side="right")).tolist(), texts)

    def _encode_slowly(self, texts: Sequence[str]) -> FlatIds:
        return flatten(self._reference(texts))

    def _encode_around(self, odd: Sequence[int], texts: Sequence[str]) -> FlatIds:
        return encode_around(odd, texts, usual=self._encode_fast, otherwise=self._encode_slowly)

    def _check_first(self, texts: Sequence[str]) -> None:
        sample: list[str] = []
        for text in texts:
            if self._unchecked_bytes <= 0:
                break
            sample.append(text[:MOST_CHARACTERS].translate(dict.fromkeys(map(ord, self._odd))))
            self._unchecked_bytes -= len(sample[-1].encode())
        self._check(sample)

    def _check(self, texts: list[str]) -> None:
        if self._fast is None or not texts:
            return
        expected = self._encode_slowly(texts)
        while self._fast is not None and not _equal(expected, self._encode_fast(texts)):
            had_cuts, self._fast = self._fast.cuts, None
            if had_cuts:
                tell("fastokens' scanner gives other ids than tokenizers: its regular expressions encode")
                self._adopt(load_fastokens(self._json, cuts=False))
            else:
                tell(
                    "fastokens gives other ids than tokenizers for this tokenizer: tokenizers encodes, which is slower"
                )

    def _adopt(self, found: FastokensIds | str) -> None:
        if isinstance(found, str):
            tell(found)
        else:
            self._fast = found


def tell(notice: str) -> None:
    """Say one line to the person who waits."""
    sys.stderr.write(f"{notice}\n")


def _equal(one: FlatIds, other: FlatIds) -> bool:
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])
