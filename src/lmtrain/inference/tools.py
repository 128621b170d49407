"""Tools that a model may call within its answer: a calculator and a person's functions."""

import ast
import importlib
import importlib.util
import inspect
import json
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.tokenizers.conversation import ToolCall

Tool = Callable[..., Any]
ERROR: Final = "error"
MAX_RESULT_CHARACTERS: Final = 2000
MAX_CHARACTERS: Final = 256  # of an expression: bounds the tree, and with MAX_BITS the time
MAX_BITS: Final = 400  # of a numerator or denominator: 120 digits
_WRITTEN = {"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-"}
_ARITHMETIC = re.compile(r"[0-9.eE+\-*/%() ]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_COUNT = re.compile(r"""(["'])([^"'\\]*)\1\.count\((["'])([^"'\\]+)\3\)""")
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def result_of(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    """Return the text of a call's result; that of any failed call is `error`."""
    try:
        value = tools[call.name](**call.arguments)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        return text.encode(errors="replace").decode()[:MAX_RESULT_CHARACTERS]
    except Exception:  # noqa: BLE001  # a tool of anyone's may raise anything; the model reads `error`
        return ERROR


def definition(name: str, tool: Tool) -> dict[str, Any]:
    """Describe a tool as OpenAI's API and chat templates do."""
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {each: {} for each in inspect.signature(tool).parameters},
    }
    function = {"name": name, "description": (inspect.getdoc(tool) or "").partition("\n")[0], "parameters": parameters}
    return {"type": "function", "function": function}


def load_function(spec: str) -> tuple[str, Tool]:
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
    """Compute an expression: a whole number in full, any other to 15 digits.

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
    for written, sign in _WRITTEN.items():
        text = text.replace(written, sign)
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
            value = Fraction(repr(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            value = _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            value = Fraction(_OPERATORS[type(sign)](_value(left), _value(right)))
        case _:
            raise CalculatorError("no arithmetic")
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_BITS:
        raise CalculatorError("a number of too many digits")
    return value


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
