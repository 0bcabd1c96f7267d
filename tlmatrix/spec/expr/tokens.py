"""The lexer of expressions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tlmatrix.dtypes import DTYPES
from tlmatrix.spec.expr.closures import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping


class ExpressionError(ValueError):
    """An expression that cannot be parsed or evaluated.

    `offset` is the index of the error in `text`, from 0.
    """

    def __init__(self, reason: str, text: str, offset: int) -> None:
        self.reason = reason
        self.text = text
        self.offset = offset
        super().__init__(f"{reason}, at character {offset + 1} of {shorten(text)!r}")

    def __reduce__(self) -> tuple[type[ExpressionError], tuple[str, str, int]]:
        return (ExpressionError, (self.reason, self.text, self.offset))


WORDS: Mapping[str, Any] = {
    "none": None,
    "null": None,
    "None": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    **{name: name for name in DTYPES},
}
"""Constants by name: those of YAML, and dtype names, which are text."""
OPERATOR_WORDS = frozenset({"and", "or", "not", "in", "is", "if", "else"})
"""Operators that are words."""
FOREIGN_WORDS = frozenset(
    {"for", "lambda", "while", "await", "yield", "import", "def", "class", "return"}
)
"""Keywords of Python that are not in the language and cannot be names."""
FOREIGN_SIGNS = {
    "&&": "write 'and'",
    "||": "write 'or'",
    "!": "write 'not'",
    "=": "write '==' to compare",
    "<>": "write '!='",
    "?": "write 'a if condition else b'",
}
"""Operators of other languages, with a hint."""
_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
    | (?P<text>'[^'\\]*'|"[^"\\]*")
    | (?P<name>[^\W\d]\w*)
    | (?P<sign>\*\*|//|==|!=|<=|>=|<>|&&|\|\||[-+*/%<>()\[\],=!?.])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """A token: `kind` is a group of `_TOKEN` or `end`, `offset` its index from 0."""

    kind: str
    text: str
    offset: int


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, `end` last; raises ExpressionError at an invalid character."""
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            sign = text[position]
            reason = f"{sign!r} is not part of the expression language"
            if sign in "'\"":
                reason = f"text in {sign} is not closed, or has a backslash"
            raise ExpressionError(reason, text, position)
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(Token(kind, match.group(), position))
        position = match.end()
    found.append(Token("end", "", len(text)))
    return found
