"""The axes of an attention case, and the valid values of each.

`axes` checks values against each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tlmatrix.dtypes import explain_dtype
from tlmatrix.problem.attention.names import ROWS
from tlmatrix.problem.attention.sinks import explain_sink
from tlmatrix.problem.distributions import explain_distribution
from tlmatrix.problem.name_table import names_of
from tlmatrix.problem.storage import explain_storage
from tlmatrix.spec.lengths import explain_lengths
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value

LAYOUTS = ("bshd", "bhsd", "thd", "padded", "cache", "paged")
PADDINGS = ("right", "left", "holes")
"""Positions of the padding in the layout `padded`; `holes` is anywhere."""
ALIGNMENTS = ("bottom_right", "top_left")
"""Alignment of a causal mask: the last query sees the last key, or the first query the first."""
CACHE_LAYOUTS = ("cache", "paged")
"""Layouts of decoding: one query per sequence, keys in a contiguous or paged KV cache."""

AXES = names_of(ROWS, "axis")
"""The axes that the family reads; an entry may take others."""

DATA_AXES = frozenset(
    {
        "batch", "seqlen_q", "seqlen_k", "seqlens", "scale", "max_seqlen_q", "max_seqlen_k",
        "values", "padding", "storage", "shared_mask", "freed_pages",
    }
)  # fmt: skip
"""Axes that do not affect the compiled kernel, if its lengths are symbolic."""

_POSITIVE = ("batch", "heads", "kv_heads", "groups", "head_dim")

CACHE_TENSORS = frozenset({"k_cache", "v_cache", "k_pages", "v_pages", "block_table", "seqlens_k"})
"""The inputs of layouts with a KV cache in place of k and v."""


def explain_value(axis: str, value: Value, *, empty: bool = False) -> str | None:
    """Why `value` is invalid for `axis`; None if it is valid.

    `empty` allows sizes of 0 for heads and head dimensions.
    """
    least = 0 if empty else 1
    match axis:
        case "dtype":
            return explain_dtype(value, floating=True)
        case "values":
            return explain_distribution(value)
        case "storage":
            return explain_storage(value)
        case "layout":
            known = isinstance(value, str) and value in LAYOUTS
            return None if known else f"unknown layout {value!r}{nearest(value, LAYOUTS)}"
        case "padding":
            known = isinstance(value, str) and value in PADDINGS
            return None if known else f"unknown padding {value!r}{nearest(value, PADDINGS)}"
        case "seqlens":
            return explain_lengths(value)
        case "alignment":
            known = isinstance(value, str) and value in ALIGNMENTS
            return None if known else f"unknown alignment {value!r}{nearest(value, ALIGNMENTS)}"
        case "causal" | "shared_mask" | "freed_pages":
            return None if isinstance(value, bool) else f"{value!r} is not true or false"
        case "sink":
            return explain_sink(value)
        case "sink_dtype":
            return None if value == "same" else explain_dtype(value, floating=True)
        case "scale":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            fine = value is None or (number and math.isfinite(float(value)))  # type: ignore[arg-type]
            return None if fine else f"{value!r} is not none or a finite number"
        case "window":
            return _at_least(value, 1, "none or a number of keys >= 1", optional=True)
        case "head_dim_v":
            return None if value == "same" else _at_least(value, least, "same or an integer >= 1")
        case "seqlen_q":
            return _at_least(value, 0, "an integer >= 0")
        case "seqlen_k":
            if value == "same":
                return None
            return _at_least(value, 0, "same or an integer >= 0", optional=True)
        case "page_size":
            return _at_least(value, 1, "none or a number of keys >= 1", optional=True)
        case "max_seqlen_q" | "max_seqlen_k":
            return _at_least(value, 0, "none or an integer >= 0", optional=True)
    if axis in _POSITIVE:
        return _at_least(value, 1 if axis == "batch" else least, "an integer >= 1")
    return None


def _at_least(value: Value, least: int, want: str, *, optional: bool = False) -> str | None:
    if value is None and optional:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return None
    return f"{'none' if value is None else repr(value)} is not {want}"


def whole(value: Value) -> int:
    """A value as an int; `explain_value` has checked it."""
    assert isinstance(value, int)
    return value
