"""From samples to a verdict.

The interval of a median is that of order statistics: of n samples sorted, the k-th smallest and
the k-th largest enclose the true median with probability 1 - 2 P(Binomial(n, 1/2) < k), whatever
the samples' distribution (Conover, Practical Nonparametric Statistics, section 3.2).
Implementations of one run are sampled in turn, so their ratios are taken pair by pair: what a
round shares, the clocks most of all, cancels out. Two runs share nothing, so there the intervals
of the two medians are set against each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CONFIDENCE", "LEAST", "MARGIN", "Interval", "Verdict", "across", "compared", "interval"]

CONFIDENCE = 0.95
"""How sure an interval is."""
MARGIN = 0.02
"""A share of the time that nobody would change code for."""
LEAST = 6
"""Fewer samples than this have no interval of 95 %."""


class Verdict(StrEnum):
    """How the first of two stands against the second."""

    FASTER = "FASTER"
    """The whole interval of its speed lies above 1 + margin."""
    SAME = "SAME"
    """The whole interval lies within the margin of 1."""
    SLOWER = "SLOWER"
    """The whole interval lies below 1 - margin."""
    UNSURE = "UNSURE"
    """The interval reaches over an edge of the margin; more rounds narrow it."""


@dataclass(frozen=True)
class Interval:
    """A median, and what encloses the true one."""

    median: float
    low: float
    high: float

    def verdict(self, margin: float = MARGIN) -> Verdict:
        """What a speed (1 where both are alike, more for faster) comes to."""
        if self.low > 1 + margin:
            return Verdict.FASTER
        if self.high < 1 - margin:
            return Verdict.SLOWER
        if 1 - margin <= self.low and self.high <= 1 + margin:
            return Verdict.SAME
        return Verdict.UNSURE


def interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of samples and its interval; with fewer than `LEAST` the whole range.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError("no samples, no median")
    ordered = sorted(samples)
    rank = _rank(len(ordered), confidence)
    return Interval(median(ordered), ordered[rank], ordered[-1 - rank])


def compared(mine: Sequence[float], other: Sequence[float]) -> Interval:
    """The speed of one against another from times of the same rounds: `other` over `mine`."""
    return interval([theirs / ours for ours, theirs in zip(mine, other, strict=True)])


def across(now: Interval, before: Interval) -> Interval:
    """The speed of one run against an earlier one, from the intervals of their times."""
    return Interval(before.median / now.median, before.low / now.high, before.high / now.low)


def _rank(count: int, confidence: float) -> int:
    """How many samples at either end may be left out."""
    allowed = (1 - confidence) / 2
    below, rank = 0.0, 0
    while True:
        below += math.comb(count, rank) / 2**count
        if below > allowed:
            return max(rank - 1, 0)
        rank += 1
