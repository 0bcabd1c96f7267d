"""The expression language of specs: `require`, `when`, `factory_args`, `call` and shapes.

Expressions cannot run code or hang: the language has its own parser and limits. It has names,
numbers, quoted text, lists, `none`/`null`, `true`/`false` (and Python's spellings), comparison
(chained as in Python, `in`, `not in`, and `is` against none, true and false), `and`/`or`/`not`,
`a if condition else b`, `+ - * / // % **`, one side of a packed axis (`seqlens.q`), and calls of
`sum`, `min`, `max`, `abs`, `len`, `ceildiv` and `pages`. Values are Python's: `or` returns an
operand, `/` is true division. Arithmetic takes numbers, and lists of numbers element by element.

A parsed expression (`parser`) becomes closures (`evaluation`), because a large matrix evaluates
each constraint millions of times.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.expr.evaluation import FUNCTIONS, Evaluate, Failed, Node, evaluator, shorten
from tlmatrix.spec.expr.parser import WORDS, ExpressionError, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FUNCTIONS", "WORDS", "Expression", "ExpressionError", "shorten"]


class Expression:
    """A parsed expression; expressions are equal if their texts are.

    Raises:
        ExpressionError: the text is not in the language.
    """

    __slots__ = ("_evaluate", "_offsets", "names", "text", "tree")

    text: str
    names: frozenset[str]
    """The names that evaluation looks up."""
    tree: Node

    def __init__(self, text: str) -> None:
        self.tree, self._evaluate, self._offsets = _parsed(text)
        self.text = text
        self.names = frozenset(self._offsets)

    def evaluate(self, names: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the value decides
        """The value for `names`; raises `ExpressionError` if it has none."""
        try:
            return self._evaluate(names)
        except Failed as failed:
            raise ExpressionError(failed.reason, self.text, failed.offset) from None
        except KeyError:
            for name, offset in self._offsets.items():
                if name not in names:
                    raise ExpressionError(f"unknown name {name!r}", self.text, offset) from None
            raise

    def offset_of(self, name: str) -> int:
        """The index of the first occurrence of `name` in the text."""
        return self._offsets[name]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return (Expression, (self.text,))  # closures do not pickle


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Node, Evaluate, Mapping[str, int]]:
    """The tree of a text, its closure, and the offset of the first occurrence of each name."""
    tree, offsets = parse(text)
    return tree, evaluator(tree), offsets
