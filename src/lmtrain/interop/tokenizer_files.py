"""The tokenizer's files as transformers reads them: `tokenizer.json`, `tokenizer_config.json`, special tokens."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmtrain.errors import DataError
from lmtrain.interop.chat_template import chat_template, end_ids, eos_token_id
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import told_as_damage
from lmtrain.tokenizers.base import META_FILE, TOKENIZER_FILE, Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer

TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"
# Files of transformers' folders besides config and weights.
COMPANIONS = (
    *(TOKENIZER_FILE, TOKENIZER_CONFIG, GENERATION_CONFIG, "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt"),
)


def copy_companions(source: Path, destination: Path) -> None:
    """Copy the tokenizer's files, and the generation config, as they are."""
    for path in _companions(source):
        shutil.copyfile(path, destination / path.name)


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_context_tokens: int) -> None:
    """Write a tokenizer of ours for AutoTokenizer, with the same encoding."""
    tokenizer.save(folder)
    (folder / META_FILE).unlink()
    end = next(token for token, id_ in tokenizer.special_tokens.items() if id_ == tokenizer.end_of_text_id)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_context_tokens,
        **dict.fromkeys(("bos_token", "eos_token", "pad_token"), end),
        "unk_token": None,
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder / TOKENIZER_CONFIG, config)
    _write(folder / "special_tokens_map.json", dict.fromkeys(("bos_token", "eos_token", "pad_token"), end))
    if template := chat_template(tokenizer):
        (folder / "chat_template.jinja").write_text(template)
    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.end_of_text_id)
    ids["eos_token_id"] = eos_token_id(tokenizer)
    _write(folder / GENERATION_CONFIG, {**ids, "do_sample": False})


def add_ends(tokenizer: Tokenizer, folder: Path) -> None:
    """Add the ends that a folder's generation config lacks, where the tokenizer has a chat style's; without one, none.

    Raises:
        DataError: The file is damaged.
    """
    path, ends = folder / GENERATION_CONFIG, end_ids(tokenizer)
    if not path.is_file() or ends == [tokenizer.end_of_text_id]:
        return
    with told_as_damage(path, fix="copy it again"):
        content: dict[str, Any] = foreign_json.read(path)
        given: Any = content.get("eos_token_id")
        known = given if isinstance(given, list) else [] if given is None else [given]
        if not {*ends} <= {*known}:
            _write(path, {**content, "eos_token_id": [*dict.fromkeys([*known, *ends])]})


def is_same_tokenizer(tokenizer: Tokenizer, folder: Path) -> bool:
    """Tell whether a tokenizer of ours was read from a folder's `tokenizer.json`."""
    return (folder / TOKENIZER_FILE).is_file() and read_tokenizer(folder).fingerprint == tokenizer.fingerprint


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a folder of transformers.

    Raises:
        DataError: There is none, or an unsupported one.
    """
    if not (folder / TOKENIZER_FILE).is_file():
        raise DataError(
            f"{folder} has no {TOKENIZER_FILE}; save it with tokenizer.save_pretrained(FOLDER) of transformers, "
            "or import the weights alone: --without-tokenizer."
        )
    try:
        return load_tokenizer(folder)
    except DataError as problem:
        raise DataError(f"{folder}: {problem} Or import the weights alone: --without-tokenizer.") from problem


def _companions(folder: Path) -> Iterator[Path]:
    return (folder / name for name in COMPANIONS if (folder / name).is_file())


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
