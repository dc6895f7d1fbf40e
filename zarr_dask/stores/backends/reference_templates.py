"""Texts with ``{{ }}`` in references, as kerchunk specifies them, without running programs.

Jinja would run what a stranger wrote. Names, arithmetic on whole numbers, formats of one number and
templates with parameters are known here; anything else is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add, floordiv, mod, mul, sub

__all__ = ["Template"]

_LONGEST = 200
"""Characters of an expression; the size of its numbers is bounded by them."""
_LONGEST_RESULT = 2000
"""Characters of a text: short ones that name a long one would fill the memory."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}
_PADDED = re.compile(r"[^%]*%0?\d?d[^%]*")
"""A format of one number."""

Names = Mapping[str, "int | str | Template"]


@dataclass(frozen=True)
class Template:
    """A text with expressions in it, parsed once.

    Examples
    --------
    >>> Template.of("s3://{{u}}/{{ '%03d' % (i + 1) }}.nc").render({"u": "run", "i": 6})
    's3://run/007.nc'
    >>> Template.of("{{ open('a') }}").render({})
    Traceback (most recent call last):
    ...
    ValueError: {{ open('a') }} is a program or names something unknown
    """

    parts: tuple[str | ast.expr, ...]

    @classmethod
    def of(cls, text: str) -> Template:
        """Parse a text.

        Raises
        ------
        ValueError
            If it has statements of Jinja, or expressions that are none.
        """
        if "{%" in text or "{#" in text:
            raise ValueError(f"{text[:_LONGEST]!r} is a program")
        plain, *rest = text.split("{{")
        parts: list[str | ast.expr] = [plain]
        for piece in rest:
            expression, closed, plain = piece.partition("}}")
            if not closed or len(expression) > _LONGEST or "\\" in expression:
                raise ValueError(f"'{{{{{piece[:_LONGEST]}' is no expression")
            parts += [_parsed(expression), plain]
        return cls(tuple(parts))

    @property
    def is_plain(self) -> bool:
        """True if there are no expressions in it."""
        return len(self.parts) == 1

    def render(self, names: Names) -> str:
        """Return the text with the values of its expressions.

        Raises
        ------
        ValueError
            If an expression is none of those that are meant.
        """
        text = ""
        for part in self.parts:
            text += part if isinstance(part, str) else str(_value(part, names))
            if len(text) > _LONGEST_RESULT:
                raise ValueError(f"{text[:_LONGEST]!r}... has at least {len(text)} characters")
        return text


def _parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"{{{{{expression}}}}} is no expression") from None


def _value(node: ast.expr, names: Names) -> int | str:
    """Return the value of an expression."""
    match node:
        case ast.Constant(value=int() | str() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if isinstance(found := names.get(name), int | str):
            return found
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, names)
        case ast.BinOp(
            left=ast.Constant(value=str() as form),
            op=ast.BitOr(),
            right=ast.Call(func=ast.Name(id="format"), args=[number], keywords=[]),
        ) if _PADDED.fullmatch(form):  # a filter of Jinja
            return form % _number(number, names)
        case ast.BinOp(left=ast.Constant(value=str() as form), op=ast.Mod(), right=number) if (
            _PADDED.fullmatch(form)
        ):
            return form % _number(number, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            operator = _OPERATORS[type(op)]
            return operator(_number(left, names), _number(right, names))
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            found = names.get(name)
            if isinstance(found, Template):
                values = {one.arg: _value(one.value, names) for one in keywords if one.arg}
                return found.render(values)
    raise ValueError(f"{{{{ {ast.unparse(node)} }}}} is a program or names something unknown")


def _number(node: ast.expr, names: Names) -> int:
    value = _value(node, names)
    if not isinstance(value, int):
        raise ValueError(f"{{{{ {ast.unparse(node)} }}}} is a text: expected a number")
    return value
