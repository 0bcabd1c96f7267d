"""Confidence intervals of medians and of speed ratios, and verdicts from them.

The confidence interval of a median uses order statistics: the k-th smallest and the k-th largest
of n samples enclose the true median with probability 1 - 2 P(Binomial(n, 1/2) < k), for any
distribution (Conover, Practical Nonparametric Statistics, section 3.2). Implementations of one run
are sampled in the same rounds, so speeds are ratios of paired samples, in which effects common to
a round, such as the clock rate, cancel. Between two runs, the intervals of both medians are
divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

CONFIDENCE = 0.95
"""Confidence level of intervals."""
MARGIN = 0.02
"""Relative difference below which two times count as the same."""
MIN_SAMPLES = 6
"""With fewer samples no interval reaches 95 %."""


class Verdict(StrEnum):
    """The result of comparing two times."""

    FASTER = "FASTER"
    """The whole interval of its speed lies above 1 + margin."""
    SAME = "SAME"
    """The whole interval lies within the margin of 1."""
    SLOWER = "SLOWER"
    """The whole interval lies below 1 - margin."""
    UNSURE = "UNSURE"
    """The interval crosses an edge of the margin; more rounds narrow it."""


@dataclass(frozen=True)
class Interval:
    """A median and its confidence interval."""

    median: float
    low: float
    high: float

    def verdict(self, margin: float = MARGIN) -> Verdict:
        """The verdict on a speed ratio, where more than 1 is faster."""
        if self.low > 1 + margin:
            return Verdict.FASTER
        if self.high < 1 - margin:
            return Verdict.SLOWER
        if 1 - margin <= self.low and self.high <= 1 + margin:
            return Verdict.SAME
        return Verdict.UNSURE


def interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of samples and its interval, the whole range if fewer than `MIN_SAMPLES`.

    Raises:
        ValueError: `samples` is empty.
    """
    if not samples:
        raise ValueError("samples is empty: a median needs at least one")
    ordered = sorted(samples)
    rank = _rank(len(ordered), confidence)
    return Interval(median(ordered), ordered[rank], ordered[-1 - rank])


def speed_ratio(mine: Sequence[float], other: Sequence[float]) -> Interval:
    """The speed relative to another implementation: ratios of paired times, `other` by `mine`."""
    return interval([theirs / ours for ours, theirs in zip(mine, other, strict=True)])


def speed_between_runs(now: Interval, before: Interval) -> Interval:
    """The speed relative to an earlier run, from the intervals of both times."""
    return Interval(before.median / now.median, before.low / now.high, before.high / now.low)


def _rank(count: int, confidence: float) -> int:
    """The number of samples outside of the interval at either end."""
    allowed = (1 - confidence) / 2
    below, rank = 0.0, 0
    while True:
        below += math.comb(count, rank) / 2**count
        if below > allowed:
            return max(rank - 1, 0)
        rank += 1
