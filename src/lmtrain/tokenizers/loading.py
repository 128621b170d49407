"""Find and read a tokenizer: in a folder, in our layout or in Hugging Face's layout, or on the hub."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from lmtrain.errors import DataError, suggest_path
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import read_object, refuse_damage
from lmtrain.storage.hub import asking_hub
from lmtrain.tokenizers.base import END_OF_TEXT, META_FILE, TOKENIZER_FILE, ChatTemplate, Tokenizer
from lmtrain.tokenizers.bpe import BytePairTokenizer, read_content
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import styles_of
from lmtrain.tokenizers.templates import TEMPLATE_FILE, TOKENIZER_CONFIG, read_template, token_named

_DOCUMENT_ENDS = (END_OF_TEXT, "<|endoftext|>", "<|end_of_sentence|>")
_OTHER_ENDS = ("</s>", "<eos>", "<|im_end|>")
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|assistant_end|>")
_OTHER_FILES = ("vocab.json", "tokenizer.model", "vocab.txt", "spiece.model")


def load_tokenizer(folder: str | Path, *, end_of_text: str | None = None) -> Tokenizer:
    """Read a tokenizer written by `save`, or any lossless `tokenizer.json`; `folder` may be the file itself.

    `end_of_text` None takes the one stated in the folder, then the names in common use.

    Raises:
        DataError: No such folder or file, a kind that loses text, or its end-of-text token is unknown.
    """
    given = Path(folder)
    folder, path = (given.parent, given) if given.is_file() else (given, given / TOKENIZER_FILE)
    if not path.is_file():
        raise DataError(f"tokenizer folder {folder} has no {TOKENIZER_FILE}; {_instead(folder)}")
    with refuse_damage(f"tokenizer folder {folder}"):
        return _loaded(foreign_json.read_bytes(path).decode(), folder, end_of_text)


def _loaded(text: str, folder: Path, end_of_text: str | None) -> Tokenizer:
    meta = read_object(folder / META_FILE, fix="restore or rebuild it")
    if meta.get("kind") == "byte_level":
        return ByteLevelTokenizer(vocab_size=meta["vocab_size"], chat=bool(meta.get("chat", False)))
    end = end_of_text or meta.get("end_of_text") or _usual_end_of_text(text, _configured_end(folder))
    tokenizer = BytePairTokenizer(text, end_of_text=end)
    if not styles_of(tokenizer.special_tokens):
        tokenizer.template = ChatTemplate(**meta["chat_template"]) if "chat_template" in meta else read_template(folder)
    return tokenizer


def _usual_end_of_text(tokenizer_json: str, configured: str) -> str:
    """Prefer the usual names: the end token in a chat model's configuration only ends a turn."""
    added: list[dict[str, Any]] = read_content(tokenizer_json).get("added_tokens") or []
    specials = [token["content"] for token in added if token.get("special")]
    first = () if configured in _TURN_ENDS else (configured,)
    found = [end for end in (*_DOCUMENT_ENDS, *first, *_OTHER_ENDS, configured) if end in specials]
    if not found:
        known = ", ".join(specials) or "none"
        raise DataError(f"tokenizer.end_of_text is not set and not obvious; the special tokens are: {known}.")
    return found[0]


def _configured_end(folder: Path) -> str:
    for file in (TOKENIZER_CONFIG, "special_tokens_map.json"):
        if end := token_named(read_object(folder / file, fix="restore or rebuild it").get("eos_token")):
            return end
    return ""


def _instead(folder: Path) -> str:
    other = next((file for file in _OTHER_FILES if (folder / file).is_file()), None)
    if other is None:
        return "name a folder that has one."
    convert = f"transformers' AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
    return f"it has {other}, from which {convert} makes one."


MORE_FILES = (TOKENIZER_CONFIG, "special_tokens_map.json", TEMPLATE_FILE)  # end-of-text token, and chat template


def find_tokenizer(name: str, *, revision: str | None = None, key: str = "tokenizer.name") -> Path:
    """Return the path of a local tokenizer, or of the hub's `name`, from the cache or downloaded now.

    `key` is the typed key of the name.
    """
    typed = f"{key}={name}"
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".json", "/")):
        msg = f"{typed} does not exist here"
        raise DataError(f"{msg}; name a folder, a {TOKENIZER_FILE}, or a model of the hub.{suggest_path(path)}")
    return _from_hub(name, revision, typed)


def _from_hub(name: str, revision: str | None, typed: str) -> Path:
    from huggingface_hub import errors, hf_hub_download

    try:
        with asking_hub(typed):
            try:
                path = hf_hub_download(name, TOKENIZER_FILE, revision=revision, local_files_only=True)
            except errors.LocalEntryNotFoundError:
                path = hf_hub_download(name, TOKENIZER_FILE, revision=revision)
    except errors.EntryNotFoundError as problem:
        fix = "save it with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER); name the folder"
        raise DataError(f"{typed} has no {TOKENIZER_FILE} on the hub; {fix}.") from problem
    for file in MORE_FILES:
        with suppress(errors.EntryNotFoundError, errors.HfHubHTTPError, OSError):  # not every model has them
            hf_hub_download(name, file, revision=revision)
    return Path(path).parent
