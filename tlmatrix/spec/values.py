"""Values of axes: their type, canonical text for comparison, and labels in case ids.

The sequence lengths of a packed axis are a list, or one for each side
(`{q: [17, 64], k: same}`).
"""

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


SIDES = ("q", "k")
"""The sides of a packed axis."""
_FORM = "write {q: [17, 64], k: same}, {q: [17, 64], k: [20, 64]} or a list for both"


def sides_of(value: Value, axis: str = "seqlens") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sequence lengths of the sides q and k.

    A plain list holds for both sides. `k: same` repeats q; a number on one side is the length of
    every sequence: `{q: 1, k: [3, 9]}`.

    Raises:
        ValueError: the value has another form, no sequence, or a length below 0.
    """
    if not isinstance(value, Mapping):
        lengths = _checked(axis, value)
        return lengths, lengths
    unknown = sorted(set(value) - set(SIDES))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {axis}; {_FORM}")
    if "q" not in value:
        raise ValueError(f"{axis} without q; {_FORM}")
    key_lengths, query_lengths = value.get("k", "same"), value["q"]
    if isinstance(query_lengths, int) and key_lengths not in ("same", None):
        query_lengths = [query_lengths] * len(_checked(f"{axis}.k", key_lengths))
    q = _checked(f"{axis}.q", query_lengths)
    k = q if key_lengths in ("same", None) else _checked(f"{axis}.k", key_lengths)
    if len(q) != len(k):
        raise ValueError(
            f"{axis} has {len(q)} query sequences and {len(k)} key sequences; "
            "every sequence needs a length in both (0 is allowed)"
        )
    return q, k


def lengths_of(value: Value, axis: str = "seqlens") -> tuple[int, ...]:
    """Lengths of a packed axis with equal sides; raises ValueError if they differ."""
    q, k = sides_of(value, axis)
    if q != k:
        raise ValueError(f"the sides q and k differ; name one, as in {axis}.q")
    return q


def explain_lengths(value: Value, axis: str = "seqlens") -> str | None:
    """The error of a value that is invalid for a packed axis, or None."""
    try:
        sides_of(value, axis)
    except ValueError as error:
        return str(error)
    return None


def _checked(place: str, value: Value) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{place} is {value!r}, not a list of lengths; {_FORM}")  # noqa: TRY004 - a wrong value in a user's file
    if not value:
        raise ValueError(f"{place} is empty; at least one sequence is needed")
    for length in value:
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise ValueError(f"{place} has the length {length!r}; lengths are integers >= 0")
    return tuple(length for length in value if isinstance(length, int))
