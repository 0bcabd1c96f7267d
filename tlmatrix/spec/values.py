"""Values of axes: their type, canonical text for comparison, and labels in case ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

type_of_scalar = str | int | float | bool | None
Value = type_of_scalar | Sequence["Value"] | Mapping[str, "Value"]


def canonical(value: Value) -> str:
    """Canonical JSON, equal if and only if two values are; `1`, `1.0` and `true` differ."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def label(value: Value) -> str:
    """The label of a value in a case id: `64`, `true`, `none`, `q17.64.1_ksame`."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return re.sub(r"[^A-Za-z0-9_.+]", "_", value)
        case Mapping():
            return "_".join(f"{label(key)}{label(item)}" for key, item in value.items())
        case _:
            return ".".join(label(item) for item in value)


def numbers_in(value: Value) -> Iterator[float]:
    """All numbers in a value, at any depth."""
    match value:
        case bool() | str() | None:
            return
        case int() | float():
            yield value
        case Mapping():
            yield from numbers_in(list(value.values()))
        case _:
            for item in value:
                yield from numbers_in(item)
