"""Parses labels in case ids, of axes whose values fuzzing generates.

The listed values of an axis give the form: lengths may be `{q: [17, 64], k: same}` in one spec and
`{q: 1, k: [17, 64]}` in another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tlmatrix.spec.model.fields import OPTIONAL_AXES
from tlmatrix.spec.model.packed import packed_axes
from tlmatrix.spec.values import Value, label

if TYPE_CHECKING:
    from tlmatrix.spec.model.spec import Spec


def parse_label(spec: Spec, axis: str, text: str) -> Value | None:
    """The value of an axis with the label `text`; None if fuzzing generates no such value."""
    ranged = () if spec.fuzz is None else spec.fuzz.axes
    if axis not in {"seqlens", *packed_axes(spec), *ranged, *OPTIONAL_AXES}:
        return None
    if axis in OPTIONAL_AXES and axis not in ranged:
        # A number, or a name that the problem family defines.
        return int(text) if re.fullmatch(r"\d+", text) else text
    for like in spec.axes.get(axis, ()):
        value = _parse(text, like)
        if value is not None and label(value) == text:
            return value
    return None


def _parse(text: str, like: Value) -> Value | None:
    """The value with the label `text` in the form of the value `like`."""
    if isinstance(like, Mapping):
        pattern = "_".join(f"{re.escape(label(key))}(.*?)" for key in like)
        found = re.fullmatch(pattern, text)
        if found is None:
            return None
        parts = {
            key: _parse(part, like[key]) for key, part in zip(like, found.groups(), strict=True)
        }
        # A word (`same`) may stand for a list, and a list for it.
        return {
            key: part if part is not None else _word_or_list(found[number], like[key])
            for number, (key, part) in enumerate(parts.items(), 1)
        }
    if isinstance(like, Sequence) and not isinstance(like, str):
        return _whole_numbers(text)
    if isinstance(like, int) and not isinstance(like, bool):
        return int(text) if re.fullmatch(r"-?\d+", text) else None
    return None


def _word_or_list(text: str, like: Value) -> Value | None:
    if isinstance(like, str):
        return text if text == label(like) else _whole_numbers(text)
    return "same" if text == "same" else None


def _whole_numbers(text: str) -> list[Value] | None:
    return [int(part) for part in text.split(".")] if re.fullmatch(r"\d+(\.\d+)*", text) else None
