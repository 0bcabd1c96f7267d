"""Sequence lengths of a packed axis: a list, or one for each side (`{q: [17, 64], k: same}`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value

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
