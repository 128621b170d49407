"""Calls of tools in a text as a model writes it."""

import re

import pytest

from lmtrain.inference.cache import cached_sdpa
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.models.llama import Llama
from lmtrain.tokenizers.chat import chat_style
from tests.inference.cached import LLAMA, let_say, noisy
from tests.tokenizers.conversations import byte_tokenizer

CALLS = {
    "lmtrain": b'<|tool_call_start|>{"name": "add", "arguments": {"to": "12"}}<|tool_call_end|>',
    "chatml": b'<tool_call>\n{"name": "add", "arguments": {"to": "12"}}\n</tool_call>',
    "llama3": b'{"name": "add", "parameters": {"to": "12"}}',
}


def loaded(style, **changes):
    tokenizer = byte_tokenizer(style)
    sizes = {**LLAMA, "vocab_size": tokenizer.vocab_size, "max_context_tokens": 512, "attention": cached_sdpa}
    end = tokenizer.special_tokens[chat_style(tokenizer).end]
    return LoadedModel(name="x", model=noisy(Llama(**sizes)), tokenizer=tokenizer, end_ids=frozenset({end}), **changes)


def tokens_of(model, text):
    """Return the bytes of a text as tokens, its special tokens among them, and an end."""
    names = {name.encode(): id_ for name, id_ in model.tokenizer.special_tokens.items() if "call" in name}
    parts = re.split(b"(" + b"|".join(map(re.escape, names)) + b")", text) if names else [text]
    return [token for part in parts for token in ([names[part]] if part in names else part)] + [*model.end_ids]


def written(model):
    calls = chat_style(model.tokenizer).calls.of(model.tokenizer.special_tokens)
    request = Request(prompt=[5], num_new_tokens=200, end_ids=model.end_ids, calls=calls)
    (generation,) = model.engine(EngineLimits(num_texts=1)).write([request])
    return generation


@pytest.mark.parametrize(("style", "words"), [("lmtrain", "I count."), ("chatml", "I count."), ("llama3", "")])
def test_calls_are_read_as_training_writes_them_and_are_not_shown(monkeypatch, style, words):
    model = loaded(style)
    said = b"\n".join([*([words.encode()] if words else []), CALLS[style]])
    let_say(monkeypatch, *tokens_of(model, said))
    generation = written(model)
    assert (generation.text.strip(), generation.finish_reason) == (words, "tool_calls")
    assert [(call.name, call.arguments) for call in generation.calls] == [("add", {"to": "12"})]


@pytest.mark.parametrize(
    ("style", "said"),
    [
        ("chatml", b"a <tool"),  # the begin of a call alone
        ("chatml", b'<tool_call>{"name": "calculator"'),  # without its end
        ("chatml", b"<tool_call>12*3</tool_call>"),
        ("lmtrain", b"<|tool_call_start|>12*3<|tool_call_end|>"),
        ("lmtrain", b"<|tool_call_start|>" + b"[" * 150 + b"<|tool_call_end|>"),
        ("llama3", b'{"name'),
        ("llama3", b' {"x": 1}'),
        ("llama3", b'See {"name": 1}'),
    ],
)
def test_words_that_are_no_call_are_shown(monkeypatch, style, said):
    model = loaded(style)
    let_say(monkeypatch, *tokens_of(model, said))
    generation = written(model)
    assert (generation.text, generation.finish_reason, generation.calls) == (said.decode(), "stop", [])
