import contextlib
import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.errors import ConfigurationError
from lmtrain.inference import engine as engine_module
from lmtrain.inference.cache import cached_sdpa
from lmtrain.inference.chat import ChatSession
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import ChatTemplate, LoadedModel
from lmtrain.inference.sampling import Sampling, choose
from lmtrain.inference.tools import MAX_BITS, CalculatorError, calculator, definition, load_function, result_of
from lmtrain.models.llama import Llama
from lmtrain.tokenizers.chat import chat_style
from lmtrain.tokenizers.conversation import ToolCall
from tests.inference.cached import LLAMA, noisy
from tests.tokenizers.conversations import byte_tokenizer

ASKED = {"role": "user", "content": "12 times 3?"}
CALL = {"name": "calculator", "arguments": {"expression": "12*3"}}
CALLS = {
    "lmtrain": b'<|tool_call_start|>{"name": "calculator", "arguments": {"expression": "12*3"}}<|tool_call_end|>',
    "chatml": b'<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*3"}}\n</tool_call>',
    "llama3": b'{"name": "calculator", "parameters": {"expression": "12*3"}}',
}


def loaded(style, **changes):
    tokenizer = byte_tokenizer(style)
    sizes = {**LLAMA, "vocab_size": tokenizer.vocab_size, "max_context_tokens": 512, "attention": cached_sdpa}
    end = tokenizer.special_tokens[chat_style(tokenizer, style).end]
    return LoadedModel(name="x", model=noisy(Llama(**sizes)), tokenizer=tokenizer, end_ids=frozenset({end}), **changes)


def tokens_of(model, text):
    """Return the bytes of a text as tokens, its special tokens among them, and an end."""
    names = {name.encode(): id_ for name, id_ in model.tokenizer.special_tokens.items() if "call" in name}
    parts = re.split(b"(" + b"|".join(map(re.escape, names)) + b")", text) if names else [text]
    return [token for part in parts for token in ([names[part]] if part in names else part)] + [*model.end_ids]


@pytest.fixture
def says(monkeypatch):
    """Let a model say given tokens, then the likeliest ones."""

    def say(*tokens):
        script = iter(tokens)

        def next_token(logits, sampling, **of):
            return next(script, None) or choose(logits, sampling, **of)

        monkeypatch.setattr(engine_module, "choose", next_token)

    return say


@pytest.mark.parametrize(("style", "words"), [("lmtrain", "I count."), ("chatml", "I count."), ("llama3", "")])
def test_calls_are_answered_as_training_writes_them_and_are_not_shown(says, style, words):
    model = loaded(style)
    talk = ChatSession(model, sampling=Sampling(), num_new_tokens=300, tools={"calculator": calculator})
    turn = b"\n".join([*([words.encode()] if words else []), CALLS[style]])
    says(*tokens_of(model, turn), *tokens_of(model, b"It is 36."))
    said = list(talk.answer(ASKED["content"]))
    answered = {"role": "assistant", "content": words, "tool_calls": [CALL]}
    last = {"role": "assistant", "content": "It is 36."}
    assert talk.messages == [ASKED, answered, {"role": "tool", "content": "36"}, last]
    assert "".join(part for part in said if isinstance(part, str)).replace("\n", "") == words + "It is 36."
    assert [part.result for part in said if not isinstance(part, str)] == ["36"]


def test_a_template_is_given_the_tools_and_its_model_s_calls_are_read(says):
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
    model = loaded("chatml", template=ChatTemplate(template))
    talk = ChatSession(model, sampling=Sampling(), num_new_tokens=300, tools={"calculator": calculator})
    prompt = model.tokenizer.decode(talk.format.prompt([ASKED], [definition("calculator", calculator)]))
    assert json.loads(prompt.partition("user:")[0])[0]["function"]["parameters"]["properties"] == {"expression": {}}
    says(*tokens_of(model, CALLS["chatml"]), *tokens_of(model, b"36"))
    assert list(talk.answer(ASKED["content"]))[-1] == "6"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("calculator", {"expression": "__import__(1)"}),
        ("calculator", {"expression": 12}),
        ("calculator", {"code": "1"}),
        ("__import__", {"name": "os"}),
        ("broken", {}),
    ],
)
def test_a_call_that_fails_has_the_result_error_and_nothing_else(name, arguments):
    tools = {"calculator": calculator, "broken": lambda: 1 / 0}
    assert result_of(ToolCall(name, arguments), tools) == "error"


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
def test_words_that_are_no_call_are_shown(says, style, said):
    model = loaded(style)
    calls = chat_style(model.tokenizer, style).calls.of(model.tokenizer.special_tokens)
    says(*tokens_of(model, said))
    request = Request(prompt=[5], num_new_tokens=200, end_ids=model.end_ids, calls=calls)
    (generation,) = model.engine(EngineLimits(num_texts=1)).write([request])
    assert (generation.text, generation.finish_reason, generation.calls) == (said.decode(), "stop", [])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+1", "2"),
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.333333333333333"),
        ("1,234,567*2", "2469134"),
        ("12 \N{MULTIPLICATION SIGN} (3 \N{MINUS SIGN} 1)", "24"),
        ("-7//2", "-4"),
        ("-7 % 3", "2"),
        ("2**-3", "0.125"),
        ("2**0.5", "1.4142135623731"),
        ("(-1)**99999", "-1"),
        ("0**99999999", "0"),
        ("1.5e3", "1500"),
        ('"strawberry".count("r")', "3"),
    ],
)
def test_arithmetic_is_exact(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("__import__('os').system('x')", "1 if 2 else 3", "print(1)", "'a'*9", "x", "0x1", "\0", ""),
        *("1/0", "9**9**9", "10**999999999999999999", "1e999", "(-8)**(1/3)", "9e100*9e100", "1(2)", "007"),
        *("1" * 257, "(" * 250, "-" * 256, '"a".count("")', "1.5e-300"),
    ],
)
def test_everything_else_is_refused(expression):
    with pytest.raises(CalculatorError):
        calculator(expression)


@given(st.text(alphabet="0123456789.eE+-*/%() ", max_size=256))
def test_any_expression_has_a_short_value_or_an_error_at_once(expression):
    began = time.process_time()
    with contextlib.suppress(CalculatorError):
        assert len(calculator(expression)) <= MAX_BITS // 3 + 1
    assert time.process_time() - began < 1


def test_a_function_of_a_file_or_a_module_is_called_by_its_name(tmp_path):
    (tmp_path / "mine.py").write_text("def double(x):\n    return 2 * x\n")
    name, function = load_function(f"{tmp_path}/mine.py:double")
    assert (name, function(4)) == ("double", 8)
    assert load_function("math:sqrt")[1](9) == 3


@pytest.mark.parametrize("spec", ["mine.py", "no_such_file.py:f", "no_such_module:f", "math:sqr", "broken.py:f"])
def test_what_is_no_function_is_refused(tmp_path, monkeypatch, spec):
    (tmp_path / "broken.py").write_text("raise KeyError(1)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="--tool: "):
        load_function(spec)
