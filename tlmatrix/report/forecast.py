"""The time that a run will take, from the durations of its cases and of earlier runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNKNOWN = 0.25
"""Share of the remaining cases in specs of unknown duration above which there is no forecast."""
_FIRST = 40
"""Cases of a spec among which workers end the one that compiled its kernels."""
_TRUST = 4
"""Cases of an earlier run that count in a mean, while few cases of this run have ended."""


class Forecast:
    """Estimates the time left; it knows how many cases each spec has.

    The remaining cases of a spec are expected to take the mean of those that ended, without the
    slowest of the first ones, which compiled or generated the kernels, and of an earlier run,
    scaled by the speed of this one. The work is divided by the rate at which workers have done it.

    Args:
        cases: the number of cases by the path of their spec.
        earlier: the mean seconds of a case in an earlier run, by path.
    """

    def __init__(self, cases: Mapping[str, int], earlier: Mapping[str, float]) -> None:
        self._left = dict(cases)
        self._earlier = {path: earlier[path] for path in cases if earlier.get(path)}
        self._ended: Counter[str] = Counter()
        self._peak: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._work = 0.0
        self._begin: float | None = None

    def ended(self, path: str, seconds: float, now: float) -> None:
        """A case of a spec ended at the time `now`, and took `seconds`."""
        if self._begin is None:
            self._begin = now - seconds
        self._left[path] = self._left.get(path, 0) - 1
        self._work += seconds
        self._ended[path] += 1
        self._seconds[path] = self._seconds.get(path, 0.0) + seconds
        if self._ended[path] <= _FIRST:
            self._peak[path] = max(self._peak.get(path, 0.0), seconds)

    def left(self, now: float) -> float | None:
        """The seconds left at the time `now`; None if too little is known."""
        remaining = {path: cases for path, cases in self._left.items() if cases > 0}
        elapsed = 0.0 if self._begin is None else now - self._begin
        if not remaining or elapsed <= 0 or self._work <= 0:
            return None
        means = {path: self._mean(path) for path in remaining}
        known = [path for path, mean in means.items() if mean is not None]
        unknown = sum(remaining[path] for path in remaining.keys() - set(known))
        if not known or unknown > _UNKNOWN * sum(remaining.values()):
            return None
        work = sum(remaining[path] * (means[path] or 0.0) for path in known)
        work *= 1 + unknown / sum(remaining[path] for path in known)
        return work * elapsed / self._work

    def _mean(self, path: str) -> float | None:
        """The expected seconds of a remaining case."""
        cases, seconds = self._usual(path)
        if path in self._earlier:
            before = self._earlier[path] * self._speed
            return (seconds + _TRUST * before) / (cases + _TRUST)
        return seconds / cases if cases else None

    def _usual(self, path: str) -> tuple[int, float]:
        """The number and the seconds of the cases that ended, without the slowest of the first."""
        cases = self._ended[path]
        if cases == 0:
            return 0, 0.0
        return cases - 1, self._seconds[path] - self._peak[path]

    @property
    def _speed(self) -> float:
        """Seconds of this run for one second of the earlier run; near 1 while little is known."""
        usual = {path: self._usual(path) for path in self._earlier}
        before = sum(self._earlier[path] * cases for path, (cases, _) in usual.items())
        now = sum(seconds for _, seconds in usual.values())
        prior = _TRUST * sum(self._earlier.values()) / len(self._earlier)
        return (now + prior) / (before + prior)


def duration_text(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 99.5:
        return f"{max(1.0, seconds):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
