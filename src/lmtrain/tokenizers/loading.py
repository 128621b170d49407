"""Read a folder's tokenizer, of any kind: one of ours, or in a Hugging Face model's layout."""

from pathlib import Path
from typing import Any

from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import told_as_damage
from lmtrain.tokenizers.base import META_FILE, TOKENIZER_FILE, Tokenizer
from lmtrain.tokenizers.bpe import BytePairTokenizer, read_content
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.special_tokens import END_OF_TEXT

_DOCUMENT_ENDS = (END_OF_TEXT, "<|endoftext|>", "<|end_of_sentence|>")
_OTHER_ENDS = ("</s>", "<eos>", "<|im_end|>")
_OTHER_FILES = ("vocab.json", "tokenizer.model", "vocab.txt", "spiece.model")


def load_tokenizer(folder: str | Path, *, end_of_text: str | None = None) -> Tokenizer:
    """Read a tokenizer written by `save`, or any lossless `tokenizer.json`; `folder` may be the file itself.

    `end_of_text` None takes the folder's own word for it, then the names in common use.

    Raises:
        DataError: No such folder or file, a kind that loses text, or its end-of-text token is unknown.
    """
    given = Path(folder)
    folder, path = (given.parent, given) if given.is_file() else (given, given / TOKENIZER_FILE)
    if not path.is_file():
        raise DataError(f"tokenizer folder {folder} has no {TOKENIZER_FILE}; {_instead(folder)}")
    text = _read_text(path)
    with told_as_damage(folder):
        return _loaded(text, folder, end_of_text)


def _loaded(text: str, folder: Path, end_of_text: str | None) -> Tokenizer:
    meta = _read_json(folder / META_FILE)
    if meta.get("kind") == "byte_level":
        size = meta.get("vocab_size")
        if not isinstance(size, int):
            raise DataError(f"{folder / META_FILE} is damaged: vocab_size={size} is no number; prepare the data again.")
        return ByteLevelTokenizer(vocab_size=size, chat=bool(meta.get("chat", False)))
    end = end_of_text or meta.get("end_of_text") or _usual_end_of_text(text, _configured_end(folder))
    return BytePairTokenizer(text, end_of_text=end)


def _usual_end_of_text(tokenizer_json: str, configured: str) -> str:
    """Return the usual names' first: the end token of a chat model's configuration only ends a turn."""
    added: list[dict[str, Any]] = read_content(tokenizer_json).get("added_tokens") or []
    specials = [token["content"] for token in added if token.get("special")]
    found = [end for end in (*_DOCUMENT_ENDS, configured, *_OTHER_ENDS) if end in specials]
    if not found:
        known = ", ".join(specials) or "none"
        raise DataError(f"tokenizer.end_of_text is not set and not obvious; the special tokens are: {known}.")
    return found[0]


def _configured_end(folder: Path) -> str:
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        end = _read_json(folder / file).get("eos_token")
        content = end.get("content") if isinstance(end, dict) else end
        if isinstance(content, str):
            return content
    return ""


def _instead(folder: Path) -> str:
    other = next((file for file in _OTHER_FILES if (folder / file).is_file()), None)
    if other is None:
        return "name a folder that has one."
    convert = f"transformers' AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
    return f"it has {other}, from which {convert} makes one."


def _read_text(path: Path) -> str:
    try:
        return foreign_json.read_bytes(path).decode()
    except ValueError as problem:
        raise DataError(f"tokenizer folder {path.parent} is damaged ({problem}); restore or rebuild it.") from problem


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = foreign_json.read(path)
    except ValueError as problem:
        raise DataError(f"{path} is damaged ({problem}); restore or rebuild it.") from problem
    return content if isinstance(content, dict) else {}
