"""Read back the tokenizer that a folder holds, of whatever kind."""

import json
from pathlib import Path
from typing import Any

from lmtrain.errors import DataError
from lmtrain.tokenizers.base import END_OF_TEXT, META_FILE, TOKENIZER_FILE, Tokenizer
from lmtrain.tokenizers.bpe import BytePairTokenizer, special_tokens_of
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

_KNOWN_ENDS = (END_OF_TEXT, "<|endoftext|>", "<|end_of_sentence|>", "<|im_end|>")


def load_tokenizer(folder: str | Path, *, end_of_text: str | None = None) -> Tokenizer:
    """Read a tokenizer that `save` wrote, or any byte-level `tokenizer.json`.

    `end_of_text` None takes the folder's own word for it, then the names in common use.

    Raises:
        DataError: No such folder or file, not byte-level, or its end-of-text token is unknown.
    """
    folder = Path(folder)
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise DataError(f"tokenizer folder {folder} has no {TOKENIZER_FILE}; name a folder that has one.")
    try:
        text = path.read_text(encoding="utf-8")
        meta: dict[str, Any] = json.loads((folder / META_FILE).read_text()) if (folder / META_FILE).is_file() else {}
    except ValueError as problem:
        raise DataError(f"tokenizer folder {folder} is damaged ({problem}); restore or rebuild it.") from problem
    if meta.get("kind") == "byte_level":
        return ByteLevelTokenizer(vocab_size=int(meta["vocab_size"]))
    return BytePairTokenizer(text, end_of_text=end_of_text or meta.get("end_of_text") or _usual_end_of_text(text))


def _usual_end_of_text(tokenizer_json: str) -> str:
    specials = special_tokens_of(tokenizer_json)
    found = [end for end in _KNOWN_ENDS if end in specials]
    if not found:
        known = ", ".join(specials) or "none"
        raise DataError(f"tokenizer.end_of_text is not set and not obvious; the special tokens are: {known}.")
    return found[0]
