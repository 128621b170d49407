"""The tokenizer's files as transformers reads them: `tokenizer.json`, its configuration, special tokens, chat template.

A chat template begins with the end-of-text token (`bos_token`), as every document does in training.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import refuse_damage
from lmtrain.tokenizers.base import META_FILE, TOKENIZER_FILE, Tokenizer
from lmtrain.tokenizers.chat import own_template, styles_of, turn_ends
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tokenizers.templates import TEMPLATE_FILE, TOKENIZER_CONFIG

GENERATION_CONFIG = "generation_config.json"
# Files of transformers' folders besides config and weights.
COMPANIONS = (
    *(TOKENIZER_FILE, TOKENIZER_CONFIG, GENERATION_CONFIG, "special_tokens_map.json", "added_tokens.json"),
    *(TEMPLATE_FILE, "chat_template.json", "vocab.json", "merges.txt"),
)


def copy_companions(source: Path, destination: Path) -> None:
    """Copy the tokenizer's files, and the generation config; a tokenizer saved while it truncated no longer does."""
    for path in (source / name for name in COMPANIONS if (source / name).is_file()):
        shutil.copyfile(path, destination / path.name)
    tokenizer = destination / TOKENIZER_FILE
    content: dict[str, Any] = foreign_json.read(tokenizer) if tokenizer.is_file() else {}
    if content.get("truncation") or content.get("padding"):
        _write(tokenizer, {**content, "truncation": None, "padding": None})


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_context_tokens: int) -> None:
    """Write a tokenizer for AutoTokenizer, with the same encoding."""
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
        (folder / TEMPLATE_FILE).write_text(template)
    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.end_of_text_id)
    ids["eos_token_id"] = eos_token_id(tokenizer)
    _write(folder / GENERATION_CONFIG, {**ids, "do_sample": False})


def add_ends(tokenizer: Tokenizer, folder: Path) -> None:
    """Add the ends that a folder's generation config lacks: those of the tokenizer's chat style, if it has one."""
    path, ends = folder / GENERATION_CONFIG, end_ids(tokenizer)
    if not path.is_file() or ends == [tokenizer.end_of_text_id]:
        return
    with refuse_damage(path, fix="copy it again"):
        content: dict[str, Any] = foreign_json.read(path)
        given: Any = content.get("eos_token_id")
        known = given if isinstance(given, list) else [] if given is None else [given]
        if not {*ends} <= {*known}:
            _write(path, {**content, "eos_token_id": [*dict.fromkeys([*known, *ends])]})


def write_own_template(tokenizer: Tokenizer, folder: Path) -> None:
    """Replace a folder's chat template by the one in which a model was trained here."""
    template = chat_template(tokenizer)
    if template is None:
        return
    end = next(token for token, id_ in tokenizer.special_tokens.items() if id_ == tokenizer.end_of_text_id)
    (folder / "chat_template.json").unlink(missing_ok=True)
    text = template if own_template(tokenizer) else template.replace("bos_token", f"'{end}'")
    (folder / TEMPLATE_FILE).write_text(text)
    if (path := folder / TOKENIZER_CONFIG).is_file():
        _write(path, {name: value for name, value in foreign_json.read(path).items() if name != "chat_template"})


def is_same_tokenizer(tokenizer: Tokenizer, folder: Path) -> bool:
    """Return whether a tokenizer was read from a folder's `tokenizer.json`."""
    return (folder / TOKENIZER_FILE).is_file() and read_tokenizer(folder).fingerprint == tokenizer.fingerprint


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a folder of transformers."""
    if not (folder / TOKENIZER_FILE).is_file():
        raise DataError(
            f"{folder} has no {TOKENIZER_FILE}; save it with tokenizer.save_pretrained(FOLDER) of transformers, "
            "or import the weights alone: --without-tokenizer."
        )
    try:
        return load_tokenizer(folder)
    except DataError as problem:
        raise DataError(f"{folder}: {problem} Or import the weights alone: --without-tokenizer.") from problem


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


ANSWER_END = "<|assistant_end|>"
NO_CALLS = "{%- if message['tool_calls'] -%}{{ raise_exception('this template writes no tool calls') }}{%- endif -%}"


def _template(turn: str, *, begin: str = "bos_token", answer: str) -> str:
    """Write a template of the expressions for the begin of a text, a message, and the begin of an answer."""
    loop = ["{%- for message in messages -%}", NO_CALLS, f"{{{{- {turn} -}}}}", "{%- endfor -%}"]
    asked = f"{{%- if add_generation_prompt -%}}{{{{- {answer} -}}}}{{%- endif -%}}"
    return "\n".join([f"{{{{- {begin} -}}}}", *loop, asked, ""])


ROLE = "(message['role'] | replace('tool', 'tool_result'))"
TEMPLATES = {
    "lmtrain": _template(
        f"'<|' + {ROLE} + '_start|>' + message['content'] + '<|' + {ROLE} + '_end|>'", answer="'<|assistant_start|>'"
    ),
    "chatml": _template(
        r"'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'",
        answer=r"'<|im_start|>assistant\n'",
    ),
    "llama3": _template(
        r"'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>'",
        begin="bos_token + '<|begin_of_text|>'",
        answer=r"'<|start_header_id|>assistant<|end_header_id|>\n\n'",
    ),
    "inst": "\n".join(
        [
            "{{- bos_token -}}{%- set ns = namespace(system='') -%}",
            f"{{%- for message in messages -%}}{NO_CALLS}",
            r"{%- if message['role'] == 'system' -%}{%- set ns.system = message['content'] + '\n\n' -%}",
            "{%- elif message['role'] == 'assistant' -%}{{- message['content'] + '</s>' -}}",
            "{%- else -%}{{- '[INST]' + ns.system + message['content'] + '[/INST]' -}}{%- set ns.system = '' -%}",
            "{%- endif -%}{%- endfor -%}",
            "",
        ]
    ),
}


def chat_template(tokenizer: Tokenizer) -> str | None:
    """Return the template of a tokenizer's chat style, or its own; None where it has neither."""
    if (writer := own_template(tokenizer)) is not None:
        return writer.exported()
    styles = styles_of(tokenizer.special_tokens)
    return TEMPLATES[styles[0].name] if styles else None


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids at the end of generation: the end of a text, and of an assistant's turn in each chat style."""
    return [*dict.fromkeys([tokenizer.end_of_text_id, *turn_ends(tokenizer)])]


def eos_token_id(tokenizer: Tokenizer) -> int | list[int]:
    """Return `end_ids` as transformers writes them: one alone, several as a list."""
    ends = end_ids(tokenizer)
    return ends if len(ends) > 1 else ends[0]
