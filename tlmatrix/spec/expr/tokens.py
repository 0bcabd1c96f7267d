"""The words of expressions: text to tokens, and what is no word of theirs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tlmatrix.spec.dtypes import DTYPES
from tlmatrix.spec.expr.closures import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FOREIGN_SIGNS",
    "FOREIGN_WORDS",
    "OPERATOR_WORDS",
    "WORDS",
    "ExpressionError",
    "Token",
    "tokens_of",
]


class ExpressionError(ValueError):
    """An expression that cannot be read, or has no value for the names it was given.

    `offset` counts characters of `text` from 0, to where the reason lies.
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
"""Words that stand for a value: those of YAML, and the names of dtypes for themselves."""
OPERATOR_WORDS = frozenset({"and", "or", "not", "in", "is"})
"""Words that stand between values."""
FOREIGN_WORDS = frozenset(
    {"if", "else", "for", "lambda", "while", "await", "yield", "import", "def", "class", "return"}
)
"""Words of Python that no name may be, for a person may think that they work here."""
FOREIGN_SIGNS = {
    "&&": "write 'and'",
    "||": "write 'or'",
    "!": "write 'not'",
    "=": "write '==' to compare",
    "<>": "write '!='",
    "?": "write 'and' and 'or'",
}
"""Signs of other languages, and what to write in their place."""
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
    """A word of an expression, or its `end`: `kind` is a group of `_TOKEN`, `offset` from 0."""

    kind: str
    text: str
    offset: int


def tokens_of(text: str) -> list[Token]:
    """The words of a text, `end` last; ExpressionError at the first character that is in none."""
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            sign = text[position]
            reason = f"{sign!r} is not part of the expression language"
            if sign in "'\"":
                reason = f"text that opens with {sign} never closes, or holds a backslash"
            raise ExpressionError(reason, text, position)
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(Token(kind, match.group(), position))
        position = match.end()
    found.append(Token("end", "", len(text)))
    return found
