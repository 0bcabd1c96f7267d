"""The finding for a case that exceeded its time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["out_of_time"]

_COMPILERS = ("/tilelang/engine/", "/tilelang/cache/", "/tlmatrix/backend/assembly/")
"""Path fragments of code that compiles kernels."""
_FRAMES = 4
"""Innermost frames that the finding shows."""


def out_of_time(frames: Sequence[str] = ()) -> Finding:
    """Make the finding.

    Args:
        frames: the stack at the time limit, from `traceback.format_stack`; empty if unknown.
    """
    if any(part in frame for frame in frames for part in _COMPILERS):
        title = "the case exceeded its time limit while compiling"
        hint = "set a longer limit with `--timeout SECONDS`, or run fewer processes with `-n`"
    else:
        title = "the case exceeded its time limit"
        hint = (
            "an endless loop, or a barrier at which no thread arrives; `--timeout SECONDS` sets a "
            "longer limit"
        )
    detail = "".join(frames[-_FRAMES:]).rstrip()
    return Finding(check="timeout", title=title, hint=hint, detail=detail or None)
