"""Sinks that reveal what ordinary ones hide; the names are known without torch.

A sink [heads] is the logit of one more key of its head, which every row sees and whose value is 0.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

from tlmatrix.words import nearest

if TYPE_CHECKING:
    import torch

    from tlmatrix.spec.values import Value

__all__ = ["SINKS", "draw_sink", "explain_sink", "sink_named"]

SINKS = {
    "normal": "independent N(0, 1), among the logits; `true` for short",
    "absent": "-inf: as if there were none; -inf minus -inf in rows that see no key",
    "faint": "-10000: no weight, but still the lse of a row that sees no key",
    "dominant": "10000: all of the weight; an exponential without it in its maximum overflows",
    "mixed": "heads have these four in turn: a head's sink taken from another shows",
}
"""Each name with what it is, or what it reveals."""

# In the range of float16, and far from any logit of `tlmatrix.problem.distributions`.
_FAR = {"absent": float("-inf"), "faint": -1e4, "dominant": 1e4}
_TURN = ("normal", "absent", "faint", "dominant")


def explain_sink(value: Value) -> str | None:
    """Why `value` says nothing about sinks, or None where it does."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value in SINKS):
        return None
    return f"{value!r} is not none, true or a name of sinks{nearest(value, SINKS)}"


def sink_named(value: Value) -> str | None:
    """The name of a value of the axis; None where there is no sink."""
    if isinstance(value, str):
        return value
    return "normal" if value else None


def draw_sink(name: str, source: torch.Generator, heads: int, dtype: torch.dtype) -> torch.Tensor:
    """The sinks [heads] of a name in `SINKS`, on the CPU."""
    import torch

    sink = torch.randn(heads, generator=source, dtype=torch.float32)
    turn = _TURN if name == "mixed" else (name,)
    for head, each in enumerate(islice(cycle(turn), heads)):
        if each in _FAR:
            sink[head] = _FAR[each]
    return sink.to(dtype)
