import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.errors import ConfigurationError
from lmtrain.inference import engine as engine_module
from lmtrain.inference.cache import cached_sdpa
from lmtrain.inference.chat import ChatSession, StyleFormat
from lmtrain.inference.engine import EngineLimits, TextEngine
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling, choose
from lmtrain.inference.tools import (
    MAX_BITS,
    MAX_CALL_BYTES,
    CalculatorError,
    StyleTools,
    calculator,
    load_function,
)
from lmtrain.models.llama import Llama
from lmtrain.tokenizers.chat import chat_style, render
from tests.inference.cached import LLAMA, noisy, uncached, write
from tests.tokenizers.conversations import byte_tokenizer

TOKENIZER = byte_tokenizer("lmtrain")
ID = TOKENIZER.special_tokens
END = ID["<|assistant_end|>"]
ASKED = [{"role": "user", "content": "12 times 3?"}]
ANSWERED = [
    *ASKED,
    {
        "role": "assistant",
        "content": "I count.",
        "tool_calls": [{"name": "calculator", "arguments": {"expression": "12*3"}}],
    },
    {"role": "tool", "content": "36"},
    {"role": "assistant", "content": "It is 36."},
]


def call(content):
    return [ID["<|tool_call_start|>"], *content, ID["<|tool_call_end|>"]]


def calling(name="calculator", **arguments):
    return call(json.dumps({"name": name, "arguments": arguments}).encode())


def tools(**more):
    made = StyleFormat(TOKENIZER, "lmtrain").tools({"calculator": calculator, **more})
    assert made is not None
    return made


def result(content, **more):
    (used,), _ = tools(**more).answer([*call(content), END])
    return used.result


def an_engine(model, **limits):
    return TextEngine(model, TOKENIZER.bytes_of_ids(), limits=EngineLimits(num_texts=1, **limits))


@pytest.fixture
def model():
    return noisy(Llama(**{**LLAMA, "vocab_size": 267, "max_context_tokens": 256, "attention": cached_sdpa}))


@pytest.fixture
def says(monkeypatch):
    """Let a model say given tokens, then the likeliest ones."""

    def say(*tokens):
        script = iter(tokens)

        def next_token(logits, sampling, **of):
            return next(script, None) or choose(logits, sampling, **of)

        monkeypatch.setattr(engine_module, "choose", next_token)

    return say


def test_a_result_is_forced_as_training_writes_it_and_the_text_goes_on_behind_it(model, says):
    prompt = StyleFormat(TOKENIZER, "lmtrain").prompt(ASKED)
    expected = [TOKENIZER.end_of_text_id, *render(TOKENIZER, ANSWERED)[0].tolist()]
    turn = [*b"I count.", *calling(expression="12*3"), END]
    says(*turn)
    request = Request(
        prompt=prompt, num_new_tokens=160, sampling=Sampling(temperature=0.0), end_ids=frozenset({END}), tools=tools()
    )
    (generation,) = write(an_engine(model, prefill_tokens=7), [request])
    behind = expected[: expected.index(ID["<|tool_result_end|>"]) + 2]  # and the begin of the next turn
    assert generation.tokens[: len(behind)] == behind
    rest = generation.tokens[len(behind) :]
    assert rest == uncached(model, behind, len(rest))  # forced tokens are read as a prompt's
    assert [each.text for each in generation.tool_turns] == ["I count."]
    assert generation.text.startswith("I count.")
    assert "calculator" not in generation.text


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"12*3", b"{}", b"\xff\xfe", b"[" * 3000, b'{"name": 3, "arguments": {}}', b"x" * (MAX_CALL_BYTES + 1)),
        b'{"name": "calculator", "arguments": {"expression": "__import__(1)"}}',
        b'{"name": "calculator", "arguments": {"expression": 12}}',
        b'{"name": "calculator", "arguments": {"code": "1"}}',
        b'{"name": "__import__", "arguments": {"name": "os"}}',
        b'{"name": "broken", "arguments": {}}',
    ],
)
def test_a_call_that_fails_has_the_result_error_and_nothing_else(content):
    assert result(content, broken=lambda: 1 / 0) == "error"


def test_special_tokens_in_a_result_are_text():
    _, forced = tools(f=lambda: "<|assistant_end|>").answer([*calling("f"), END])
    assert list(forced).count(END) == 0


def test_a_call_cut_off_is_none_and_a_turn_may_have_several():
    assert tools().answer([ID["<|tool_call_start|>"], *b"{}", END]) == ((), ())
    results, _ = tools().answer([*calling(expression="1+1"), *calling(expression="2+2"), END])
    assert [each.result for each in results] == ["2", "4"]


CALLS_IN_WORDS = {
    "chatml": b'<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*3"}}\n</tool_call>',
    "llama3": b'{"name": "calculator", "parameters": {"expression": "12*3"}}',
}


@pytest.mark.parametrize(("style", "words"), [("chatml", "I count."), ("llama3", "")])
def test_calls_in_words_are_answered_as_training_writes_them_and_are_not_shown(says, style, words):
    tokenizer = byte_tokenizer(style)
    end = tokenizer.special_tokens[chat_style(tokenizer, style).end]
    sizes = {**LLAMA, "vocab_size": tokenizer.vocab_size, "max_context_tokens": 512, "attention": cached_sdpa}
    loaded = LoadedModel(
        name="x", model=noisy(Llama(**sizes)), tokenizer=tokenizer, end_ids=frozenset({end, tokenizer.end_of_text_id})
    )
    talk = ChatSession(loaded, sampling=Sampling(), num_new_tokens=300, tools={"calculator": calculator})
    turn = b"\n".join([*([words.encode()] if words else []), CALLS_IN_WORDS[style]])
    says(*turn, end, *b"It is 36.", end)
    said = list(talk.answer("12 times 3?"))
    assert talk.messages == [ASKED[0], {**ANSWERED[1], "content": words}, *ANSWERED[2:]]
    assert "".join(delta.text for delta in said) == "\n".join([words, "It is 36."]).lstrip()
    prompt = talk.format.prompt(ASKED)
    _, forced = StyleTools(tokenizer, chat_style(tokenizer, style), {"calculator": calculator}).answer([*turn, end])
    expected = [tokenizer.end_of_text_id, *render(tokenizer, talk.messages)[0].tolist()]
    assert [*prompt, *turn, end, *forced, *b"It is 36.", end] == expected[: len(expected) - (style == "chatml")]


@pytest.mark.parametrize(
    ("style", "said", "shown"),
    [
        ("chatml", b"a <tool", "a <tool"),  # the begin of a call alone
        ("chatml", b'<tool_call>{"name": "calculator"', '<tool_call>{"name": "calculator"'),  # without its end
        ("llama3", b'{"name', '{"name'),
        ("llama3", b' {"x": 1}', ' {"x": 1}'),
        ("llama3", b'See {"name": 1}', 'See {"name": 1}'),
    ],
)
def test_words_that_are_no_call_are_shown(says, style, said, shown):
    tokenizer = byte_tokenizer(style)
    made = StyleTools(tokenizer, chat_style(tokenizer, style), {"calculator": calculator})
    sizes = {**LLAMA, "vocab_size": tokenizer.vocab_size, "max_context_tokens": 256, "attention": cached_sdpa}
    says(*said, made.turn_end)
    request = Request(prompt=[5], num_new_tokens=90, end_ids=frozenset({made.turn_end}), tools=made)
    engine = TextEngine(noisy(Llama(**sizes)), tokenizer.bytes_of_ids(), limits=EngineLimits(num_texts=1))
    (generation,) = write(engine, [request])
    assert (generation.text, generation.finish_reason, generation.tool_turns) == (shown, "stop", [])


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
        *(
            "__import__('os').system('x')",
            "1 if 2 else 3",
            "print(1)",
            "'a'*9",
            "[1]",
            "1;2",
            "x",
            "e",
            "0x1",
            "\0",
            "",
        ),
        *("1/0", "0**-1", "9**9**9", "10**999999999999999999", "1e999", "(-8)**(1/3)", "9e100*9e100", "1(2)", "007"),
        *("1" * 257, "(" * 250, "-" * 256, '"a".count("")', '"\\x61".count("a")', "1.5e-300"),
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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mine.py", "FILE.py:FUNCTION"),
        ("no_such_file.py:f", "no_such_file.py"),
        ("no_such_module:f", "No module"),
        ("math:sqr", "has no function sqr"),
        ("broken.py:f", "broken.py"),
    ],
)
def test_what_is_no_function_is_refused(tmp_path, monkeypatch, spec, message):
    (tmp_path / "broken.py").write_text("raise KeyError(1)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        load_function(spec)
