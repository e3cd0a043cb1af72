"""Arithmetic on plain expressions, computed exactly."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.thought import Thought

_EXPRESSION = r"([-+(]{0,20}\d[\d\s.,+\-*/^%()×÷]{0,200})"
_ASKED = re.compile(
    r"\b(?:what is|what's|compute|calculate|evaluate|how much is|solve|work out|result of|value of)\W*?"
    r"(?:the (?:value|result) of\W*?)?(?<![\d(+-])" + _EXPRESSION,
    re.IGNORECASE,
)
_EQUALS = re.compile(_EXPRESSION + r"=\s*\??\s*$", re.MULTILINE)
_SIGNS = str.maketrans({"×": "*", "÷": "/", "^": "!", ",": None})

DIGITS_MAX: Final = 30
"""Most digits of any number, intermediate results included: a small model does no long sums."""

_OPERATORS: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.FloorDiv: lambda one, two: Fraction(one // two),
}


def count(reading: ParsedPrompt) -> Thought | None:
    """Return the value of the expression that the question asks for."""
    asked = f"{reading.question}\n{reading.instruction}"
    if not any(sign in asked for sign in "+-*/^%×÷"):
        return None
    match = _ASKED.search(asked) or _EQUALS.search(asked)
    if match is None:
        return None
    value = valued(match[1])
    if value is None:
        return None
    wrong = tuple(written(value + off) for off in (1, -1, 10))
    return Thought(written(value), wrong, f"{match[1].strip()} = {written(value)}")


def valued(expression: str) -> Fraction | None:
    """Return the value of an expression with ``+ - * / % ^`` and brackets; None if invalid or too long."""
    value = expression.strip().rstrip(".").translate(_SIGNS).replace("!", "**")
    try:
        tree = ast.parse(value, mode="eval").body
        if not isinstance(tree, ast.BinOp):
            return None
        return _value(tree)
    except (ArithmeticError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = Fraction(str(node.value))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = _value(node.left), _value(node.right)
        if power.denominator != 1 or abs(power) > 64 or (base == 0 and power < 0):
            raise ValueError("no such power")
        value = Fraction(base ** int(power))
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    else:
        raise ValueError("no arithmetic")
    if max(abs(value.numerator), value.denominator) >= 10**DIGITS_MAX:
        raise ValueError("too long")
    return value


def written(value: Fraction) -> str:
    """Return a number as decimal text."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.6f}".rstrip("0").rstrip(".")
