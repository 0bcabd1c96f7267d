"""Extends pytest's `-k` with terms `axis=value`, which its grammar does not have.

`-k "causal=true and dtype=float16"` becomes `-k ":causal:true: and :dtype:float16:"`, and every
case carries the keywords `:axis:value:` of its values. The colons on both ends make the match
exact: `head_dim=64` does not select `head_dim=640`. A word without `=` matches as in pytest: a part
of the id of a case, of the name of its spec's file or folder, or of its kind (`invalid`, `fuzz`,
`regression`, `extra`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from _pytest.mark import expression as grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tlmatrix.matrix import Case

_WORD = re.compile(r"[\w.+:\-]+(?:=[\w.+:\-]+)+")
_SEPARATOR = re.compile(r"-(?=[A-Za-z_]\w*=)")
_SYNTAX_ERRORS: tuple[type[Exception], ...] = (
    SyntaxError,
    getattr(grammar, "ParseError", SyntaxError),
)
"""Raised by pytest for an invalid expression; before pytest 9 it is an exception of its own."""


class KeywordError(ValueError):
    """An expression of `-k` is invalid."""


def rewrite_keywords(expression: str) -> str:
    """Translate every `axis=value` (or `a=x-b=y`, or a whole id) to pytest's grammar.

    Raises:
        KeywordError: the expression is invalid.
    """
    return _compiled(expression)[0]


def case_keywords(case: Case) -> set[str]:
    """The keywords of a case: its values, and its kind if it is not a case of the tier."""
    from tlmatrix.spec.values import label

    found = {f":{name}:{label(value)}:" for name, value in case.values.items()}
    return found if case.origin == "tier" else {*found, case.origin}


def selector(expression: str) -> Callable[[Case, Iterable[str]], bool]:
    """A function that returns whether `-k EXPRESSION` selects a case.

    Its second argument has the names of the spec's file and folder.

    Raises:
        KeywordError: the expression is invalid.
    """
    _, compiled = _compiled(expression)

    def selects(case: Case, names: Iterable[str] = ()) -> bool:
        known = [name.lower() for name in (case.id, *case_keywords(case), *names)]

        def has(word: str, /, **_options: str | int | bool | None) -> bool:
            return any(word.lower() in name for name in known)

        return compiled.evaluate(has)

    return selects


def _compiled(expression: str) -> tuple[str, grammar.Expression]:
    rewritten = _WORD.sub(lambda found: _rewritten(found.group()), expression)
    try:
        compiled = grammar.Expression.compile(rewritten)
        if "=" in rewritten:  # pytest accepts arguments of terms, but only uses them for -m
            raise SyntaxError("= without an axis and a value")
    except _SYNTAX_ERRORS as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise KeywordError(
            f"-k {expression!r} is invalid: {reason}; write terms such as axis=value, a part of an "
            "id, or invalid, joined by and, or, not and parentheses"
        ) from error
    return rewritten, compiled


def _rewritten(word: str) -> str:
    pairs = [pair.replace("=", ":", 1) for pair in _SEPARATOR.split(word)]
    terms = [f":{pair}:" for pair in pairs]
    return terms[0] if len(terms) == 1 else f"({' and '.join(terms)})"
