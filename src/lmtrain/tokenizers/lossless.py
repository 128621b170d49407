"""Make a foreign `tokenizer.json` give every text back to the byte, or say why it cannot.

Shards, their verification and bits per byte rest on one property: the bytes of a text's ids are the text's bytes. So
the steps of a `tokenizer.json` for a text's form alone (NFC, a space put in front) are left out, and lossy kinds (word
pieces, lower case) are refused. `left_out` names them.
"""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lmtrain.errors import DataError
from lmtrain.tokenizers.base import BYTE_OF_CHARACTER, bytes_of

SPACE_SYMBOL = "\u2581"  # sentencepiece's character for a space
NUM_BYTES = 256
USABLE = "Use a byte-level tokenizer (GPT-2, Llama 3, Qwen) or one with byte fallback (Llama 2, Gemma)"
FIX = f"{USABLE}, or train one: tokenizer=bpe."

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_CONTROL = re.compile(r"<\|.+\|>")
_LOSSY_SPLITS = frozenset({"BertPreTokenizer", "CharDelimiterSplit", "Whitespace", "WhitespaceSplit"})

Step = dict[str, Any]


@dataclass(frozen=True)
class Lossless:
    """The content of a lossless `tokenizer.json`, and the steps left out for that."""

    content: dict[str, Any]
    left_out: tuple[str, ...]

    @cached_property
    def has_byte_fallback(self) -> bool:
        """Return whether it is sentencepiece's kind (characters, bytes where they are rare), not the byte-level one."""
        return not _is_byte_level(self.content)

    def bytes_of_entry(self, entry: str) -> bytes:
        """Return the bytes of an entry of the model's vocabulary. KeyError when it is none."""
        if not self.has_byte_fallback:
            return bytes_of(entry)
        byte = _BYTE_PIECE.fullmatch(entry)
        return bytes([int(byte[1], 16)]) if byte else self.bytes_of_added(entry)

    def bytes_of_added(self, text: str) -> bytes:
        """Return the bytes of an added token without a special meaning."""
        return text.replace(SPACE_SYMBOL, " ").encode() if self.has_byte_fallback else text.encode()


def make_lossless(content: dict[str, Any]) -> Lossless:
    """Return a copy of a tokenizer's content without steps changing a text's form.

    Raises:
        DataError: It loses text, also with steps left out.
    """
    made = {name: part if name == "model" else copy.deepcopy(part) for name, part in content.items()}
    made["model"] = copy.copy(content["model"])  # its vocabulary is large, and stays as it is
    left_out: list[str] = []
    _require_model(made)
    made["normalizer"] = _normalizer(made.get("normalizer"), left_out)
    for step in _steps(made.get("pre_tokenizer")):
        _repair_split(step, left_out)
    _plain_spaces(made)
    if made["model"].get("dropout"):
        made["model"]["dropout"] = None
        left_out.append("dropout")
    for token in made.get("added_tokens") or []:
        _repair_added(token, left_out)
    _require_bytes(made)
    return Lossless(made, tuple(dict.fromkeys(left_out)))


def _require_model(content: dict[str, Any]) -> None:
    model = content.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        why = {
            "WordPiece": "it cuts text into words and loses the white space between them",
            "WordLevel": "it loses the white space and every word that it does not know",
            "Unigram": "only byte-pair encoding is supported",
        }
        raise DataError(f"tokenizer.json has a model of type {kind}: {why.get(str(kind), 'unknown')}. {FIX}")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise DataError(f"tokenizer.json marks words with {name}={model[name]!r}, which is not text. {FIX}")


def _normalizer(normalizer: Step | None, left_out: list[str]) -> Step | None:
    if normalizer is None:
        return None
    forms = {"NFC": "NFC", "Prepend": "the space put in front of a text"}
    left_out += [forms[step["type"]] for step in _steps(normalizer) if step["type"] in forms]
    kept = [step for step in _steps(normalizer) if step["type"] not in forms]
    for step in kept:
        replaces = (step["type"], step.get("pattern"), step.get("content"))
        is_space_symbol = replaces == ("Replace", {"String": " "}, SPACE_SYMBOL)
        if step["type"] != "ByteLevel" and not is_space_symbol:
            raise DataError(f"tokenizer.json changes the text (normalizer {step['type']}) for good. {FIX}")
    if not kept:
        return None
    return kept[0] if len(kept) == 1 else {"type": "Sequence", "normalizers": kept}


def _repair_split(step: Step, left_out: list[str]) -> None:
    if step["type"] in _LOSSY_SPLITS or step.get("behavior") == "Removed":
        raise DataError(f"tokenizer.json loses the text between words (pre_tokenizer {step['type']}). {FIX}")
    if step.get("add_prefix_space") or step.get("prepend_scheme", "never") != "never":
        left_out.append("the space put in front of a text")
    if "add_prefix_space" in step:
        step["add_prefix_space"] = False
    if step["type"] == "Metaspace":
        step["prepend_scheme"] = "never"


def _plain_spaces(content: dict[str, Any]) -> None:
    """Write a metaspace step without cuts as the replacement it is: faster encoders know that too."""
    step = content.get("pre_tokenizer")
    whole = {"type": "Metaspace", "replacement": SPACE_SYMBOL, "prepend_scheme": "never", "split": False}
    if content["normalizer"] is None and step is not None and {name: step.get(name) for name in whole} == whole:
        content["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SYMBOL}
        content["pre_tokenizer"] = None


def _repair_added(token: Step, left_out: list[str]) -> None:
    if token.get("lstrip") or token.get("rstrip"):
        token["lstrip"] = token["rstrip"] = False
        if not token.get("special"):
            left_out.append(f"the white space that {token['content']} swallows")
    if not token.get("special") and _CONTROL.fullmatch(token["content"]):
        token["special"] = True  # a control token by its name, whether marked in the file or not


def _require_bytes(content: dict[str, Any]) -> None:
    vocabulary = content["model"].get("vocab", {})
    if _is_byte_level(content):
        missing = sorted(byte for character, byte in BYTE_OF_CHARACTER.items() if character not in vocabulary)
    elif content["model"].get("byte_fallback"):
        missing = [byte for byte in range(NUM_BYTES) if f"<0x{byte:02X}>" not in vocabulary]
    else:
        raise DataError(
            f"tokenizer.json is neither byte-level nor has it byte fallback: it cannot write any text. {FIX}"
        )
    if missing:
        bytes_ = ", ".join(f"0x{byte:02X}" for byte in missing[:3])
        msg = f"tokenizer.json has no entry for {len(missing)} of the 256 bytes ({bytes_}, ...)"
        raise DataError(f"{msg}: text with them would be lost. {FIX}")


def _is_byte_level(content: dict[str, Any]) -> bool:
    steps = (*_steps(content.get("pre_tokenizer")), *_steps(content.get("normalizer")))
    return any(step["type"] == "ByteLevel" for step in steps)


def _steps(step: Step | None) -> Iterator[Step]:
    """Yield the single steps of a normalizer or pre-tokenizer, those of sequences one by one."""
    if step is None:
        return
    inner = step.get("normalizers") or step.get("pretokenizers")
    if step["type"] != "Sequence":
        yield step
    for one in inner or []:
        yield from _steps(one)


def cut_at(pattern: "re.Pattern[str]", text: str, *, encode: Callable[[str], list[int]]) -> list[int]:
    """Return the ids of a text cut behind the first character of every match, so that none is seen whole."""
    ids: list[int] = []
    start = 0
    for match in pattern.finditer(text):
        ids += encode(text[start : match.start() + 1])
        start = match.start() + 1
    return ids + encode(text[start:])
