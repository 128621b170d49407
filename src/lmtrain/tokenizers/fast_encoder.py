r"""A faster encoder that gives the same ids, used only where it was compared with `tokenizers`.

fastokens (https://github.com/crusoecloud/fastokens, Apache-2.0) reads the same `tokenizer.json` as `tokenizers` and is
many times faster. It is compared on texts with difficult cuts and on the first texts of every run; where one id
differs, or it is not installed or cannot read the file, `tokenizers` encodes.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from lmtrain.errors import DataError
from lmtrain.tokenizers.base import FlatIds, flatten, reject_failures

SAMPLE_BYTES = 1_000_000
MOST_CHARACTERS = 100_000  # of one text, compared
OTHERWISE_CUT = "\u180e"  # white space to fastokens' expressions (PCRE2), not to those of `tokenizers` (Oniguruma)
SLOWER = "tokenizers encodes, which is slower"

HARD_TEXTS = (
    "I'll pay 12345,67 for_it  now!!\n\n \tDON'T  \r\n\r\n\u00a0x\u2003y \u3000\u200bz\x00\x1f\x7f\u0085\u2028 ",
    "Stra\u00dfe nai\u0308ve e\u0301 \u0130 \u01c5 \u017f \ufb01 \u65e5\u672c\u3001\u8a9e \ud55c\uad6d \u0e20\u0e32 ",
    "\u0639\u0631\u0628 \u0939\u093f\u0928\u094d\u0926\u0940 \U0001f469\u200d\U0001f680\ufe0f \ufeff\ufffd\U0010ffff",
    "\u0663\u0664 \u2167 \u00bd \u00b2 \u2460\u2461 1\u066b5 '\u2019s 'S 'LL x='re' a'b",
    "   " * 30 + "=" * 200 + "\n" * 40 + "a" * 300 + "ab" * 300 + "0" * 70 + " \n" * 9 + "\t\t",
)


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

        `reference` decides which ids are right; it also encodes batches with `odd_characters`, and those whose fast
        ids hold one of `special_tokens`.
        """
        self._reference = reference
        self._odd = OTHERWISE_CUT + odd_characters
        self._special_ids = np.array(list(special_tokens.values()), np.uint32)
        self._unchecked_bytes = SAMPLE_BYTES
        self._fast = _load_fastokens(tokenizer_json)
        self._check([*HARD_TEXTS, *special_tokens, f"a{' '.join(special_tokens)}\n"])

    def __call__(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back, and where each text's end."""
        sample: list[str] = []
        for text in texts if self._unchecked_bytes > 0 else ():
            sample.append(text[:MOST_CHARACTERS])
            self._unchecked_bytes -= len(sample[-1].encode())
            if self._unchecked_bytes <= 0:
                break
        self._check(sample)
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> FlatIds:
        if self._fast is not None and texts and not any(map(self._is_odd, texts)):
            ids, ends = _flat(self._fast, texts)
            if not np.isin(ids, self._special_ids).any():
                return ids, ends
        return flatten(self._reference(texts))

    def _is_odd(self, text: str) -> bool:
        return not text.isascii() and any(character in text for character in self._odd)

    def _check(self, texts: list[str]) -> None:
        if self._fast is None:
            return
        for text in texts:
            (ids, _), (found, _) = flatten(self._reference([text])), self._encode([text])
            if not np.array_equal(ids, found):
                sys.stderr.write(f"fastokens gives other ids than tokenizers for this tokenizer: {SLOWER}\n")
                self._fast = None
                return


def _load_fastokens(tokenizer_json: str) -> Any:
    """Return fastokens' tokenizer, or None after a line with the reason."""
    # Its own threads wait for work by spinning: with one, a core encodes 250 instead of 150 MB/s (0.3.5).
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    try:
        import fastokens
    except ImportError:
        sys.stderr.write(f"fastokens is not installed: {SLOWER}; pip install fastokens\n")
        return None
    try:
        with reject_failures("fastokens cannot read this tokenizer", fix=SLOWER):
            return fastokens.Tokenizer.from_json_str(tokenizer_json)
    except DataError as problem:  # `tokenizers` can read every file that it cannot
        sys.stderr.write(f"{problem}\n")
        return None


def _flat(encoder: Any, texts: Sequence[str]) -> FlatIds:
    with reject_failures("fastokens cannot encode this text"):  # PCRE2 gives up on a match
        ids, ends = encoder.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
    return np.frombuffer(ids, dtype="<u4"), np.frombuffer(ends, dtype="<u8")[1:].astype(np.int64)
