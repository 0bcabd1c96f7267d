"""Sets of elements as index expressions: `k[64:128, 0, 0:64]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.runtime.codecs import Array

_RANGES = 4
"""Ranges of one dimension that are listed; more are given by their ends."""


def rendered_indices(flat: Array, shape: Sequence[int]) -> str:
    """`[63, 0:64]` for elements numbered by rows; empty for a variable.

    A set that is no box is given by the box around it and the number of its elements.
    """
    if not len(shape):
        return ""
    parts = [np.unique(i) for i in np.unravel_index(flat, tuple(shape))]
    text = "[" + ", ".join(rendered_ranges(part) for part in parts) + "]"
    box = int(np.prod([len(part) for part in parts]))
    return text if box == len(flat) else f"{len(flat)} elements of {text}"


def rendered_ranges(values: Array) -> str:
    """`3`, `0:64`, `0:64:2` or `0:17 and 64:128` for sorted integers, each once."""
    if len(values) == 1:
        return str(int(values[0]))
    steps = np.diff(values)
    if len(values) > 2 and steps[0] > 1 and (steps == steps[0]).all():
        return f"{values[0]}:{values[-1] + 1}:{steps[0]}"
    runs = np.split(values, np.flatnonzero(steps > 1) + 1)
    if len(runs) > _RANGES:
        return f"{len(values)} in {values[0]}:{values[-1] + 1}"
    return " and ".join(str(r[0]) if len(r) == 1 else f"{r[0]}:{r[-1] + 1}" for r in runs)
