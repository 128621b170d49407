"""A byte-level BPE tokenizer in a GGUF file: tokens, merges, cuts, special tokens, chat template.

llama.cpp knows the expression by which a tokenizer cuts text by a name from a fixed list.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.interop.tokenizer_files import ANSWER_END
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import read_object
from lmtrain.tokenizers.base import TOKENIZER_FILE
from lmtrain.tokenizers.bpe import SPLIT_EXPRESSION
from lmtrain.tokenizers.templates import TEMPLATE_FILE, TOKENIZER_CONFIG, token_named

if TYPE_CHECKING:
    from gguf import GGUFWriter

LLAMA_3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2: Final = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT_2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CUTS: Final = {LLAMA_3: "llama-bpe", QWEN_2: "qwen2", GPT_2: "gpt-2", SPLIT_EXPRESSION: "llama-bpe"}
NFC: Final = {"type": "NFC"}
NEVER_MERGED: Final = "ÿ ÿ"  # llama.cpp asks for a merge; the byte 255 is in no text
NEARLY: Final = (
    "llama.cpp cuts numbers into three digits where this tokenizer cuts two: it may read a number of three digits or "
    "more in other tokens than training did; all other text is read alike."
)


def add_tokenizer(writer: "GGUFWriter", folder: Path, *, num_ids: int) -> str | None:
    """Write a folder's tokenizer for a model with `num_ids` ids; return a note where llama.cpp's cuts differ.

    Raises:
        ConfigurationError: It is not byte-level BPE, or cut by an expression unknown to llama.cpp.
    """
    from gguf import TokenType

    content = foreign_json.read(folder / TOKENIZER_FILE)
    model, expression = content["model"], split_expression(content)
    merges = [one if isinstance(one, str) else " ".join(one) for one in model.get("merges", [])]
    if model.get("type") != "BPE" or (merges and expression not in CUTS):
        raise ConfigurationError(
            f"{folder / TOKENIZER_FILE} is cut by {expression!r}, unknown to llama.cpp; `lmtrain export hf` can."
        )
    names = {id_: (name, TokenType.NORMAL) for name, id_ in model["vocab"].items()}
    for token in content["added_tokens"] or []:
        names[token["id"]] = (token["content"], TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED)
    rows = [names.get(id_, (f"[PAD{id_}]", TokenType.UNUSED)) for id_ in range(num_ids)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(CUTS.get(expression or "", "gpt-2"))
    writer.add_token_list([name for name, _ in rows])
    writer.add_token_types([kind for _, kind in rows])
    writer.add_token_merges(merges or [NEVER_MERGED])
    _add_special(writer, folder, {name: id_ for id_, (name, _) in enumerate(rows)})
    return NEARLY if merges and expression == SPLIT_EXPRESSION else None


def split_expression(content: Mapping[str, Any]) -> str | None:
    """Return the expression for cutting text before merges; None: text is not cut.

    NFC, which Qwen's files ask for, is left out, as llama.cpp and lmtrain's own tokenizers leave it out.

    Raises: ConfigurationError for cuts of another kind.
    """
    first: Any = content.get("pre_tokenizer") or {}
    steps = first["pretokenizers"] if first.get("type") == "Sequence" else [first]
    splits = [step for step in steps if step.get("type") == "Split"]
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    changes_text = (content.get("normalizer") or NFC) != NFC
    if len(byte_level) != 1 or len(splits) > 1 or len(steps) != len(splits) + 1 or changes_text:
        raise ConfigurationError(
            "tokenizer.json is not of the byte-level kind that llama.cpp reads; `lmtrain export hf` can write it."
        )
    if splits:
        return splits[0]["pattern"].get("Regex")
    return GPT_2 if byte_level[0].get("use_regex", True) else None


def _add_special(writer: "GGUFWriter", folder: Path, ids: Mapping[str, int]) -> None:
    config = read_object(folder / TOKENIZER_CONFIG)
    for key, add in (
        ("bos_token", writer.add_bos_token_id),
        ("eos_token", writer.add_eos_token_id),
        ("pad_token", writer.add_pad_token_id),
    ):
        if (token := token_named(config.get(key))) in ids:
            add(ids[token])
    if ANSWER_END in ids:
        writer.add_eot_token_id(ids[ANSWER_END])
    begins = _begins(read_object(folder / TOKENIZER_FILE).get("post_processor") or {})
    writer.add_add_bos_token(begins or bool(config.get("add_bos_token", False)))
    template = folder / TEMPLATE_FILE
    text = template.read_text(encoding="utf-8") if template.is_file() else config.get("chat_template")
    if isinstance(text, str):
        writer.add_chat_template(text)


def _begins(step: Mapping[str, Any]) -> bool:
    """Return whether a post-processor puts a token before a text, by itself or as one of several."""
    if step.get("type") == "Sequence":
        return any(map(_begins, step["processors"]))
    return step.get("type") == "TemplateProcessing" and "SpecialToken" in step["single"][0]
