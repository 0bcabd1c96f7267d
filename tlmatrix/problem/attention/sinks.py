"""Attention sinks with edge-case values, by name.

A sink [heads] is the logit of one more key of each head, which every row sees; its value is 0.
Importing this module does not import torch.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

from tlmatrix.words import nearest

if TYPE_CHECKING:
    import torch

    from tlmatrix.spec.values import Value

SINKS = {
    "normal": "independent N(0, 1), like the logits",
    "strong": "uniform in [5, 16]: most of the weight; reveals a logit in too few bits",
    "absent": "-inf: no sink; gives -inf minus -inf in rows that see no key",
    "faint": "-10000: no weight, but the lse of a row that sees no key",
    "dominant": "10000: all of the weight; exp overflows if the maximum leaves it out",
    "mixed": "normal or strong, absent, faint and dominant, one head after another: reveals a sink "
    "of the wrong head",
}
"""Values by name, and the bugs that they reveal. `true` is `normal` or `strong`, by the seed."""

# In the range of float16, and far from all logits of `tlmatrix.problem.distributions`.
_FAR = {"absent": float("-inf"), "faint": -1e4, "dominant": 1e4}
_MIXED = ("usual", "absent", "faint", "dominant")
_STRONG = (5.0, 16.0)


def explain_sink(value: Value) -> str | None:
    """Why `value` is invalid for the axis `sink`; None if it is valid."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value in SINKS):
        return None
    return f"{value!r} is not none, true or a kind of sink{nearest(value, SINKS)}"


def sink_kind(value: Value) -> str | None:
    """The kind of sink that a value of the axis selects; None for no sink."""
    if isinstance(value, str):
        return value
    return "usual" if value else None


def generate_sink(
    name: str, source: torch.Generator, heads: int, dtype: torch.dtype
) -> torch.Tensor:
    """A sink [heads] of a kind in `SINKS`, or `usual` (normal or strong), on the CPU."""
    import torch

    sink = torch.randn(heads, generator=source, dtype=torch.float32)
    low, high = _STRONG
    strong = torch.rand(heads, generator=source) * (high - low) + low
    usual = "strong" if bool(torch.rand((), generator=source) < 0.5) else "normal"
    kinds = _MIXED if name == "mixed" else (name,)
    for head, each in enumerate(islice(cycle(kinds), heads)):
        if each in _FAR:
            sink[head] = _FAR[each]
        elif "strong" in (each, usual if each == "usual" else ""):
            sink[head] = strong[head]
    return sink.to(dtype)
