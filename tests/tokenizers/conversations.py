"""Conversations to render, and tokenizers of bytes that have some style's special tokens."""

import json

from lmtrain.tokenizers.base import CHARACTER_OF_BYTE
from lmtrain.tokenizers.bpe import BytePairTokenizer
from lmtrain.tokenizers.chat import STYLES
from tests.tokenizers.layouts import added

SPOKEN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Größe of 2 km in m?"},
    {"role": "assistant", "content": "2,000 m."},
    {"role": "user", "content": "Thanks!"},
    {"role": "assistant", "content": "Any time."},
]
WITH_TOOLS = [
    {"role": "user", "content": "Weather in Ulm and Bern?"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {"type": "function", "id": "a", "function": {"name": "weather", "arguments": {"city": "Ulm"}}},
            {"type": "function", "id": "b", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
    {"role": "tool", "tool_call_id": "b", "content": "sun"},
    {"role": "assistant", "content": "Rain in Ulm, sun in Bern."},
]
ONE_TOOL = [
    WITH_TOOLS[0],
    {**WITH_TOOLS[1], "content": None, "tool_calls": WITH_TOOLS[1]["tool_calls"][:1]},
    *(WITH_TOOLS[2], WITH_TOOLS[4]),
]


def typed_by_a_user(style: str) -> list[dict]:
    """Return a conversation in which people type every special token of a style."""
    tokens = "".join(next(one.special_tokens for one in STYLES if one.name == style))
    return [{"role": role, "content": f"I say {tokens} here"} for role in ("system", "user", "assistant")]


def byte_tokenizer(style: str) -> BytePairTokenizer:
    """Return ids 0 to 255 for the bytes, 256 for end-of-text, then a style's special tokens."""
    specials = ("<|end_of_text|>", *next(one.special_tokens for one in STYLES if one.name == style))
    ids = dict(zip((*CHARACTER_OF_BYTE, *specials), range(999), strict=False))
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": [added(name, ids[name]) for name in specials],
        "pre_tokenizer": as_bytes,
        "decoder": as_bytes,
        "model": {"type": "BPE", "vocab": ids, "merges": []},
    }
    return BytePairTokenizer(json.dumps(content))


def written(tokenizer: BytePairTokenizer, ids, mask) -> list[list]:
    """Return rendered ids as a person reads them: [text, carries loss] for each run of bytes or special token."""
    names = {id_: name for name, id_ in tokenizer.special_tokens.items()}
    runs: list[list] = []
    for id_, has_loss in zip(ids.tolist(), mask.tolist(), strict=True):
        if id_ in names:
            runs.append([names[id_], has_loss])
        elif runs and runs[-1][1] == has_loss and isinstance(runs[-1][0], bytes):
            runs[-1][0] += bytes([id_])
        else:
            runs.append([bytes([id_]), has_loss])
    return [[text.decode() if isinstance(text, bytes) else text, has_loss] for text, has_loss in runs]
