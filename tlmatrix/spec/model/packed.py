"""Packed axes of a spec, and dimensions derived from them.

For lengths X, `sum(X)` is the number of rows, `len(X)` the number of sequences, and `pages(X, P)`
the number of pages of their pool. X is a packed axis, a side of one, or an expression for a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from tlmatrix.spec.expr.expression import Expression, tokens_of
from tlmatrix.spec.model.spec import DeclaredProblem

if TYPE_CHECKING:
    from tlmatrix.spec.issues import KeyPath
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


@lru_cache(maxsize=4096)
def call_of(text: str) -> tuple[str, tuple[Expression, ...]] | None:
    """The function and the arguments of an expression that is one call, `sum(seqlens)`."""
    tokens = tokens_of(text)[:-1]
    if len(tokens) < 4 or tokens[0].kind != "name" or tokens[1].text != "(":
        return None
    starts, ends, depth = [tokens[1].offset + 1], [], 0
    for number, token in enumerate(tokens):
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if depth == 0 and number:
            if number != len(tokens) - 1:
                return None  # `sum(a) + sum(b)`
            ends.append(token.offset)
        elif depth == 1 and token.text == ",":
            ends.append(token.offset)
            starts.append(token.offset + 1)
    arguments = (text[start:end].strip() for start, end in zip(starts, ends, strict=True))
    return tokens[0].text, tuple(Expression(each) for each in arguments if each)


def names_in(expression: Expression) -> tuple[str, ...]:
    """The name tokens of an expression in order: `seqlens` and `q` of `seqlens.q`."""
    return tuple(token.text for token in tokens_of(expression.text) if token.kind == "name")


def is_packed(value: Value) -> bool:
    """Whether a value has the form of a packed axis: a list, or sides with a list among them."""
    if isinstance(value, Mapping):
        return any(isinstance(each, list | tuple) for each in value.values())
    return isinstance(value, list | tuple)


def packed_lists(problem: DeclaredProblem) -> Iterator[tuple[KeyPath, Expression]]:
    """The lists of lengths of a problem, each with the path of its key."""
    for name, decl in problem.inputs.items():
        if decl.derived is not None:
            key, lengths = decl.derived
            yield ("problem", "inputs", name, key), lengths
    outputs = problem.outputs if isinstance(problem.outputs, dict) else {}
    for key, tensors in (("inputs", problem.inputs), ("outputs", outputs)):
        for name, tensor in tensors.items():
            for place, size in enumerate(tensor.shape or ()):
                call = call_of(size.text) if isinstance(size, Expression) else None
                if call is not None and call[0] == "sum":
                    yield ("problem", key, name, "shape", place), call[1][0]


def packed_axes(spec: Spec) -> tuple[str, ...]:
    """The axes whose values are lengths of sequences, in the order of the spec."""
    problem = spec.problem
    if not isinstance(problem, DeclaredProblem):
        return ("seqlens",) if "seqlens" in spec.axes else ()
    named = {name for _, lengths in packed_lists(problem) for name in lengths.names}
    return tuple(
        axis for axis, values in spec.axes.items() if axis in named and any(map(is_packed, values))
    )
