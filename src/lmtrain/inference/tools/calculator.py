"""Arithmetic for a model: an expression becomes a tree of numbers and operators, and nothing else is computed.

Exact fractions with + - * / // % ** and parentheses; and the count of a text in another, "strawberry".count("r"), for
tasks of spelling (as nanochat's calculator has both).
"""

import ast
import re
from fractions import Fraction

MAX_CHARACTERS = 256  # of an expression: bounds the tree, and with MAX_BITS the time
MAX_BITS = 400  # of a numerator or denominator: 120 digits
_WRITTEN = {"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-"}
_ARITHMETIC = re.compile(r"[0-9.eE+\-*/%() ]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_COUNT = re.compile(r"""(["'])([^"'\\]*)\1\.count\((["'])([^"'\\]+)\3\)""")


class CalculatorError(ValueError):
    """An expression outside the calculator's grammar or limits."""


def calculator(expression: str) -> str:
    """Return an expression's value: a whole number in full, any other to 15 digits.

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
