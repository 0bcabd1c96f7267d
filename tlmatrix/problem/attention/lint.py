"""Checks the axes and names of an attention spec, without building a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.problem.attention.axis_values import AXES, CACHE_LAYOUTS, explain_value
from tlmatrix.problem.attention.names import ROWS
from tlmatrix.problem.case_setup import listed_axis_values
from tlmatrix.problem.name_lint import lint_arguments, lint_results
from tlmatrix.problem.name_table import names_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec

_NAMES = (names_of(ROWS, "name") - names_of(ROWS, "input")) | {"seqlens_k"}
_RESULTS = names_of(ROWS, "output", "gradient")
TENSORS = _RESULTS | (names_of(ROWS, "input") - {"seqlens_k"})
"""All tensors that a case may have, results included."""


def lint(spec: Spec) -> Iterator[Issue]:
    """Located issues of the spec. Axes that the family does not know belong to the entry."""
    for path, axis, value in listed_axis_values(spec):
        if axis in AXES and (reason := explain_value(axis, value)):
            yield spec.issue(path, f"{axis}: {reason}")
    axes = spec.axes
    for axis, values in (("dtype", "[float16]"), ("head_dim", "[64]")):
        if axis not in axes:
            yield spec.issue(("axes",), f"attention needs the axis {axis}; add {axis}: {values}")
    if "heads" not in axes and "kv_heads" not in axes:
        yield spec.issue(
            ("axes",),
            "attention needs the axis heads, or kv_heads (with groups); add kv_heads: [1]",
        )
    if {"heads", "kv_heads", "groups"} <= set(axes):
        yield spec.issue(
            ("axes", "heads"),
            "two of heads, kv_heads and groups determine the third; remove one axis",
        )
    yield from _lint_lengths(spec)
    yield from lint_arguments(spec, _NAMES, TENSORS)
    yield from lint_results(spec, _RESULTS)
    windows = [value for value in axes.get("window", ()) if value is not None]
    stored = set(CACHE_LAYOUTS) >= set(axes.get("layout", ("bshd",)))
    if windows and not stored and True not in axes.get("causal", ()):
        yield spec.issue(
            ("axes", "window"),
            f"window {windows[0]} needs causal: true, which no case has; add causal: [true]",
        )


def _lint_lengths(spec: Spec) -> Iterator[Issue]:
    axes = spec.axes
    layouts = list(axes.get("layout", ()))
    if "paged" in layouts and "page_size" not in axes:
        yield spec.issue(
            ("axes", "layout", layouts.index("paged")),
            "layout paged needs the axis page_size; add page_size: [16]",
        )
    if "padded" in layouts and "seqlens" not in axes:
        yield spec.issue(
            ("axes", "layout", layouts.index("padded")),
            "layout padded needs the axis seqlens; add seqlens: [{q: [17, 64], k: same}]",
        )
        return
    stored = [layout for layout in layouts if layout in CACHE_LAYOUTS]
    if stored and "seqlens" not in axes:
        yield spec.issue(
            ("axes", "layout", layouts.index(stored[0])),
            f"layout {stored[0]} needs the axis seqlens; add seqlens: [{{q: 1, k: [17, 64, 0]}}]",
        )
        return
    if "seqlens" not in axes:
        if "seqlen_q" not in axes:
            yield spec.issue(
                ("axes",),
                "attention needs the axis seqlens (packed) or seqlen_q (dense); add "
                "seqlens: [{q: [17, 64], k: same}] or seqlen_q: [64]",
            )
        return
    for axis in ("seqlen_q", "seqlen_k", "batch"):
        if axis in axes:
            yield spec.issue(
                ("axes", axis), f"the axes {axis} and seqlens are both given; remove one of them"
            )
    for number, layout in enumerate(axes.get("layout", ())):
        if layout in ("bshd", "bhsd"):
            yield spec.issue(
                ("axes", "layout", number),
                f"layout {layout} is dense, and seqlens makes packed sequences (layout thd); for "
                f"{layout} replace the axis seqlens by seqlen_q and batch",
            )
