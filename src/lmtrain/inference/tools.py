"""Tools that a model may call within its answer: its calls in its chat style, a calculator, a person's functions."""

import ast
import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any, Final, final

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.inference.generation import ToolResult
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat import ChatStyle, encode_segments
from lmtrain.tokenizers.conversation import ConversationError, ToolCall, read_call

Tool = Callable[..., Any]
ERROR: Final = "error"
MAX_CALL_BYTES: Final = 4096
MAX_RESULT_CHARACTERS: Final = 2000
MAX_CHARACTERS: Final = 256  # of an expression: bounds the tree, and with MAX_BITS the time
MAX_BITS: Final = 400  # of a numerator or denominator: 120 digits
_WRITTEN = {"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-"}
_ARITHMETIC = re.compile(r"[0-9.eE+\-*/%() ]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_COUNT = re.compile(r"""(["'])([^"'\\]*)\1\.count\((["'])([^"'\\]+)\3\)""")


@final
class StyleTools:
    """Tools by name; any failed call gets the result `error`."""

    def __init__(self, tokenizer: Tokenizer, style: ChatStyle, tools: Mapping[str, Tool]) -> None:
        """Take a style with its tokens in the tokenizer."""
        specials, tokens = tokenizer.special_tokens, style.call_tokens
        self.call_tokens = None if tokens is None else (specials[tokens[0]], specials[tokens[1]])
        self.call_words = style.call_words
        self.turn_end = specials[style.end]
        self._tokenizer, self._style, self._tools = tokenizer, style, tools
        self._pieces = tokenizer.bytes_of_ids()

    def answer(self, turn: Sequence[int]) -> tuple[Sequence[ToolResult], Sequence[int]]:
        """Return the results of a turn's calls, in order, and the ids up to the model's next words."""
        calls = self._calls(turn) if self.call_words is None else self.call_words.calls(self._bytes(turn))
        results = [self._result(content) for content in calls]
        if not results:
            return (), ()
        segments = self._style.results([each.call for each in results], [each.result for each in results])
        return results, encode_segments(self._tokenizer, segments)

    def _calls(self, turn: Sequence[int]) -> Iterator[bytes]:
        """Yield the text between the call tokens; a call without its end is not one."""
        assert self.call_tokens is not None
        start: int | None = None
        for place, token in enumerate(turn):
            if token == self.call_tokens[0]:
                start = place + 1
            elif token == self.call_tokens[1] and start is not None:
                yield self._bytes(turn[start:place])
                start = None

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._pieces[each] for each in tokens if each < len(self._pieces))

    def _result(self, content: bytes) -> ToolResult:
        try:
            if len(content) > MAX_CALL_BYTES:
                raise ConversationError("a tool call", f"over {MAX_CALL_BYTES} bytes", "write less")
            key = "arguments" if self.call_words is None else self.call_words.arguments_key
            call = read_call(content.decode(), arguments_key=key)
        except ValueError:  # neither text, nor JSON, nor a call: all of them are ValueErrors
            return ToolResult(ToolCall("invalid", {"text": content[:MAX_CALL_BYTES].decode(errors="replace")}), ERROR)
        try:
            return ToolResult(call, _as_text(self._tools[call.name](**call.arguments)))
        except Exception:  # noqa: BLE001  # a tool of anyone's may raise anything; the model reads `error`
            return ToolResult(call, ERROR)


def _as_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode(errors="replace").decode()[:MAX_RESULT_CHARACTERS]


def load_function(spec: str) -> tuple[str, Callable[..., Any]]:
    """Return the name and function of FILE.py:FUNCTION or MODULE:FUNCTION; this runs the file's code.

    Raises:
        ConfigurationError: The file, module or function does not exist.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigurationError(f"--tool: must be FILE.py:FUNCTION or MODULE:FUNCTION, got {spec}.")
    module = _module(place)
    function = getattr(module, name, None)
    if not callable(function):
        names = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise ConfigurationError(f"--tool: {place} has no function {name}.{suggest(name, names)}")
    return name, function


def _module(place: str) -> ModuleType:
    path = Path(place)
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        found = importlib.util.spec_from_file_location(path.stem, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    except Exception as problem:  # a file of the user's may raise anything while it is read
        raise ConfigurationError(f"--tool: cannot import {place}: {problem}.") from problem
    return module


class CalculatorError(ValueError):
    """An expression outside the calculator's grammar or limits."""


def calculator(expression: str) -> str:
    """Return an expression's value: a whole number in full, any other to 15 digits.

    Exact fractions with + - * / // % ** and parentheses; and the count of a text in another, "strawberry".count("r"),
    as nanochat's calculator has both. Only this grammar is computed.

    Raises:
        CalculatorError: The expression is not arithmetic, has no value, or is too large.
    """
    if len(expression) > MAX_CHARACTERS:
        raise CalculatorError(f"an expression of {len(expression)} characters is over {MAX_CHARACTERS}")
    text = expression.strip()
    if counted := _COUNT.fullmatch(text):
        return str(counted[2].count(counted[4]))
    for written, operator in _WRITTEN.items():
        text = text.replace(written, operator)
    text = _THOUSANDS.sub("", text)
    if not _ARITHMETIC.fullmatch(text):
        raise CalculatorError("no arithmetic")
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as problem:
        raise CalculatorError(str(problem)) from problem
    return str(value) if value.denominator == 1 else f"{float(value):.15g}"


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return _bounded(Fraction(repr(number)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return _bounded(_combined(_value(left), operator, _value(right)))
        case _:
            raise CalculatorError("no arithmetic")


def _combined(left: Fraction, operator: ast.operator, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return left % right
        case ast.Pow():
            return _power(left, right)
        case _:
            raise CalculatorError("no arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        power = float(base) ** float(exponent)
        if isinstance(power, complex):
            raise CalculatorError("a root of a negative number")
        return Fraction(repr(power))
    bits = max(abs(base.numerator), base.denominator).bit_length()
    # 1 and -1 have one bit and no large power; every other base grows by at least bits - 1 an exponent.
    if bits > 1 and abs(exponent.numerator) * (bits - 1) > MAX_BITS:
        raise CalculatorError("a power of too many digits")
    return base ** int(exponent % 2 if bits == 1 and base else exponent)


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_BITS:
        raise CalculatorError("a number of too many digits")
    return value
