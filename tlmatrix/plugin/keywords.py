"""Lets pytest's `-k` select cases by `axis=value`, which its own grammar has no room for.

`-k "causal=true and dtype=float16"` becomes `-k ":causal:true: and :dtype:float16:"`, and every
case carries the keywords `:axis:value:` of its values. The colons on both ends make the match
exact: `head_dim=64` does not select `head_dim=640`. A word without `=` is matched as pytest matches
it, as a part of the id of a case, of the name of its spec's file or folder, or of its kind:
`invalid`, `fuzz`, `regression`, `extra`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from _pytest.mark import expression as grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tlmatrix.matrix import Case

__all__ = ["KeywordError", "case_keywords", "rewrite_keywords", "selector"]

_WORD = re.compile(r"[\w.+:\-]+(?:=[\w.+:\-]+)+")
_BETWEEN = re.compile(r"-(?=[A-Za-z_]\w*=)")
_WRONG: tuple[type[Exception], ...] = (SyntaxError, getattr(grammar, "ParseError", SyntaxError))
"""What pytest raises for an expression that it cannot read; before pytest 9 its own exception."""


class KeywordError(ValueError):
    """An expression of `-k` that cannot be read."""


def rewrite_keywords(expression: str) -> str:
    """The expression with each `axis=value` (or `a=x-b=y`, or a whole id) in pytest's grammar.

    Raises:
        KeywordError: pytest could not read the expression.
    """
    return _compiled(expression)[0]


def case_keywords(case: Case) -> set[str]:
    """What `rewrite_keywords` looks for, and the kind of a case that is not of its tier."""
    from tlmatrix.spec.values import label

    found = {f":{name}:{label(value)}:" for name, value in case.values.items()}
    return found if case.origin == "tier" else {*found, case.origin}


def selector(expression: str) -> Callable[[Case, Iterable[str]], bool]:
    """Whether `-k EXPRESSION` selects a case of a file and folders with these names.

    Raises:
        KeywordError: pytest could not read the expression.
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
        if "=" in rewritten:  # pytest takes arguments of terms for -m alone
            raise SyntaxError("= without an axis and a value")
    except _WRONG as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise KeywordError(
            f"-k {expression!r} cannot be read: {reason}; write terms such as axis=value, a part "
            "of an id, or invalid, joined by and, or, not and parentheses"
        ) from error
    return rewritten, compiled


def _rewritten(word: str) -> str:
    pairs = [pair.replace("=", ":", 1) for pair in _BETWEEN.split(word)]
    terms = [f":{pair}:" for pair in pairs]
    return terms[0] if len(terms) == 1 else f"({' and '.join(terms)})"
