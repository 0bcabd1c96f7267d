"""The keys `call` and `returns`: arguments and results of an entry or a reference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Discriminator, PlainValidator, Tag, WithJsonSchema

from tlmatrix.spec.expr.expression import WORDS, Expression, ExpressionError
from tlmatrix.spec.issues import Fault, KeyPath
from tlmatrix.spec.model.fields import Identifier, Model, ShortModel, Target
from tlmatrix.words import suggestion

Fill = Literal["empty", "zeros", "nan"]
SKIPPED = "_"
"""The name of an unchecked result in a list of `returns`."""


class OutputBuffer(Model):
    """An output that the caller allocates and the call writes."""

    output: Identifier
    fill: Fill = "nan"


class Inout(Model):
    """An argument that the call changes in place: a copy of an input."""

    inout: Identifier
    output: Identifier


def _to_argument(value: object) -> Any:  # noqa: ANN401 - text, a number, or a list of these
    if isinstance(value, list | tuple):
        return [_to_argument(item) for item in value]
    if isinstance(value, str):
        if not is_name(value):
            Expression(value)
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError(
        "must be a name, an expression, a number, true, false, none, a list of these, "
        "{output: NAME}, or {inout: NAME, output: NAME}"
    )


def _to_path(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value and all(value.split(".")):
        return value
    raise ValueError("must be a path of keys, indices and attributes, such as aux.1")


def _kind_of_item(value: object) -> str:
    if isinstance(value, Mapping):
        return "<inout>" if "inout" in value else "<buffer>"
    if isinstance(value, Inout):
        return "<inout>"
    return "<buffer>" if isinstance(value, OutputBuffer) else "<value>"


def _kind(value: object) -> str:
    return "<mapping>" if isinstance(value, Mapping) else "<list>"


Value = Annotated[
    Any,
    PlainValidator(_to_argument),
    WithJsonSchema({"type": ["string", "number", "boolean", "null", "array"]}),
]
Item = Annotated[
    Annotated[Value, Tag("<value>")]
    | Annotated[OutputBuffer, Tag("<buffer>")]
    | Annotated[Inout, Tag("<inout>")],
    Discriminator(_kind_of_item),
]
Path = Annotated[
    str,
    PlainValidator(_to_path),
    WithJsonSchema({"type": ["string", "integer"]}),
]
Call = Annotated[
    Annotated[tuple[Item, ...], Tag("<list>")]
    | Annotated[dict[Identifier, Item], Tag("<mapping>")],
    Discriminator(_kind),
]
"""Positional or keyword arguments."""
Returns = Annotated[
    Annotated[tuple[Identifier, ...], Tag("<list>")]
    | Annotated[dict[Identifier, Path], Tag("<mapping>")],
    Discriminator(_kind),
]
"""Names of results in order, or a mapping from names to paths in the result."""


class Reference(ShortModel):
    """A function that computes the expected outputs. Text alone is short for `function`."""

    short = "function"

    function: Target
    call: Call = ()
    returns: Returns = ()
    dtype: Literal["float64", "float32", "same"] = "float64"
    operands: str | None = None


def items_of(call: Call) -> Iterator[tuple[str | int, Any]]:
    """The arguments of `call`, each with its index or its keyword."""
    yield from call.items() if isinstance(call, dict) else enumerate(call)


def is_name(text: str) -> bool:
    """Whether an argument is a plain name, not an expression."""
    return text.isidentifier() and text not in WORDS


@cache
def expression(text: str) -> Expression:
    """The parsed expression of a text, cached."""
    return Expression(text)


def names_in(item: object) -> frozenset[str]:
    """The names that an argument reads, without the output that it writes."""
    if isinstance(item, Inout):
        return frozenset({item.inout})
    if isinstance(item, list | tuple):
        return frozenset().union(*map(names_in, item))
    if not isinstance(item, str):
        return frozenset()
    if is_name(item):
        return frozenset({item})
    try:
        return expression(item).names
    except ExpressionError:
        return frozenset()  # the loader reports it


def names_of(call: Call) -> frozenset[str]:
    """The names that `call` reads."""
    return frozenset().union(*(names_in(item) for _, item in items_of(call)))


def written_by(call: Call, results: tuple[str, ...]) -> tuple[str, ...]:
    """The outputs that a call writes to its arguments; `results` are the names in `returns`."""
    found = []
    for _, item in items_of(call):
        if isinstance(item, OutputBuffer | Inout):
            found += [item.output] * (item.output != SKIPPED)
        elif isinstance(item, str) and item in results:
            found.append(item)
    return tuple(found)


def results_of(returns: Returns) -> tuple[str, ...]:
    """The outputs that `returns` names."""
    return tuple(name for name in returns if name != SKIPPED)


# Faults -------------------------------------------------------------------------------------------


def call_faults(call: Call, returns: Returns, path: KeyPath) -> Iterator[Fault]:
    """Outputs written or returned twice; `path` leads to the mapping that has `call`."""
    names = tuple(returns)
    for index, name in enumerate(names):
        if name != SKIPPED and name in names[:index]:
            yield Fault((*path, "returns", index), f"{name!r} is returned twice")
    seen: set[str] = set()
    for key, item in items_of(call):
        for name in written_by((item,), results_of(returns)):
            if name in seen:
                yield Fault((*path, "call", key), f"{name!r} is written twice")
            seen.add(name)


def output_faults(
    call: Call, returns: Returns, outputs: Collection[str], path: KeyPath
) -> Iterator[Fault]:
    """Unknown outputs in `returns` and in buffers of `call`."""
    by_key = returns.items() if isinstance(returns, dict) else enumerate(returns)
    for key, value in by_key:
        name = str(key if isinstance(returns, dict) else value)
        if name not in outputs and name != SKIPPED:
            hint = suggestion(name, sorted(outputs), "Outputs")
            where = (*path, "returns", key)
            yield Fault(where, f"unknown output {name!r}{hint}", at_key=isinstance(returns, dict))
    for key, item in items_of(call):
        if isinstance(item, OutputBuffer | Inout) and item.output not in {*outputs, SKIPPED}:
            hint = suggestion(item.output, sorted(outputs), "Outputs")
            where = (*path, "call", key, "output")
            yield Fault(where, f"unknown output {item.output!r}{hint}")
