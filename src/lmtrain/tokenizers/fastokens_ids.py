"""fastokens behind one call, its own scanner made use of where the numbers of a text are cut beforehand."""

import json
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import one_line
from lmtrain.tokenizers.flat_ids import FlatIds, encode_around
from lmtrain.tokenizers.number_cuts import cut_numbers, ends_of_texts, in_threes
from lmtrain.tokenizers.panics import panics_told

FAILED = "fastokens cannot encode this text"


@final
class FastokensIds:
    """Encodes by PCRE2, as the file says, or with the file's digits in threes and the texts cut to suit."""

    def __init__(self, module: Any, tokenizer_json: str, *, cuts: bool) -> None:
        """Read a tokenizer; `cuts` where its expression allows.

        Raises:
            Exception: Of many kinds, where fastokens cannot read it.
        """
        self._read = module.Tokenizer.from_json_str
        self._json = tokenizer_json
        changed = in_threes(foreign_json.parse(tokenizer_json)) if cuts else None
        self._scanner = None if changed is None else self._read(json.dumps(changed))
        if self._scanner is None:
            assert self._as_it_is is not None

    @property
    def cuts(self) -> bool:
        """Return whether numbers are cut for the scanner."""
        return self._scanner is not None

    def __call__(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back, and where each text's end."""
        if self._scanner is None:
            return self._uncut(texts)
        parts = [cut_numbers(text) for text in texts]
        odd = [index for index, of_text in enumerate(parts) if of_text is None]
        return encode_around(odd, texts, usual=self._cut, otherwise=self._uncut) if odd else self._joined(parts)

    def _cut(self, texts: Sequence[str]) -> FlatIds:
        return self._joined([cut_numbers(text) for text in texts])

    def _joined(self, parts: Sequence[list[str] | None]) -> FlatIds:
        known = [of_text for of_text in parts if of_text is not None]
        ids, ends = _flat(self._scanner, [part for of_text in known for part in of_text])
        return ids, ends_of_texts(ends, list(map(len, known)))

    def _uncut(self, texts: Sequence[str]) -> FlatIds:
        return _flat(self._as_it_is, texts)

    @cached_property
    def _as_it_is(self) -> Any:
        return self._read(self._json)


def load_fastokens(tokenizer_json: str, *, cuts: bool = True) -> FastokensIds | str:
    """Return the encoder, or a line on the reason for none."""
    # Its own threads wait for work by spinning: with one, a core encodes 250 instead of 150 MB/s (0.3.5).
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    try:
        import fastokens
    except ImportError:
        return "fastokens is not installed: tokenizers encodes, which is slower; pip install fastokens"
    try:
        with panics_told("fastokens cannot read this tokenizer"):
            return FastokensIds(fastokens, tokenizer_json, cuts=cuts)
    except DataError as problem:
        return f"{problem} tokenizers encodes, which is slower"
    except Exception as problem:  # noqa: BLE001  # `tokenizers` can read every file that it cannot
        return f"fastokens cannot read this tokenizer ({problem}): tokenizers encodes, which is slower"


def _flat(encoder: Any, texts: Sequence[str]) -> FlatIds:
    with panics_told(FAILED):
        try:
            ids, ends = encoder.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        except ValueError as problem:  # PCRE2 gives up on a match
            raise DataError(f"{FAILED}: {one_line(problem)}; use another tokenizer.") from problem
    return np.frombuffer(ids, dtype="<u4"), np.frombuffer(ends, dtype="<u8")[1:].astype(np.int64)
