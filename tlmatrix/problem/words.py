"""How an error message points at the word that was meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'float16'?`, or the list of what is known where nothing is near."""
    names = sorted(set(known))
    near = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
