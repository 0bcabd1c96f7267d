"""What is said of a case that did not end in its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["out_of_time"]

_COMPILERS = ("/tilelang/engine/", "/tilelang/cache/", "/tlmatrix/backend/assembly/")
"""Parts of the paths of what only compiles."""
_SHOWN = 4
"""Calls."""


def out_of_time(frames: Sequence[str] = ()) -> Finding:
    """The finding.

    Args:
        frames: where it was, as `traceback.format_stack` has it; empty where nobody knows.
    """
    if any(part in frame for frame in frames for part in _COMPILERS):
        title = "the case did not end in its time, and was still compiling"
        hint = (
            "`--timeout SECONDS` gives more time, and fewer processes at once (`-n`) give each "
            "more of the processor"
        )
    else:
        title = "the case did not end in its time"
        hint = (
            "a loop that cannot end or a barrier nobody arrives at; `--timeout SECONDS` gives more "
            "time"
        )
    detail = "".join(frames[-_SHOWN:]).rstrip()
    return Finding(check="timeout", title=title, hint=hint, detail=detail or None)
