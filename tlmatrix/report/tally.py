"""Results counted by status, and a forecast of the time that the rest will take.

The forecast is of the durations of a run's cases and of those of earlier runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tlmatrix.report.text import count, unsupported_text
from tlmatrix.run.result import FAILURES, SkipReason, Status

if TYPE_CHECKING:
    from tlmatrix.run.result import CaseResult


class Tally:
    """Counts of results.

    Attributes:
        counts: cases by status.
        seconds: the time of all cases.
        slowest: the slowest case.
        messages: skipped cases by message.
        reasons: cases that did not run, by reason.
        places: (backend, architecture) of the cases that ran.
    """

    def __init__(self, results: Iterable[CaseResult] = ()) -> None:
        self.counts: Counter[Status] = Counter()
        self.seconds = 0.0
        self.slowest: CaseResult | None = None
        self.messages: Counter[str] = Counter()
        self.reasons: Counter[SkipReason] = Counter()
        self.places: dict[tuple[str, str], None] = {}
        for result in results:
            self.add(result)

    def add(self, result: CaseResult) -> None:
        """Count a result."""
        self.counts[result.status] += 1
        self.seconds += result.seconds
        if self.slowest is None or result.seconds > self.slowest.seconds:
            self.slowest = result
        if result.status is Status.SKIPPED:
            self.messages[result.message] += 1
        if result.reason:
            self.reasons[result.reason] += 1
        if result.backend:
            self.places[result.backend, result.arch] = None

    @property
    def cases(self) -> int:
        """The number of results."""
        return self.counts.total()

    @property
    def passed(self) -> int:
        """Cases that passed."""
        return self.counts[Status.PASSED]

    @property
    def failed(self) -> int:
        """Cases that failed, in any way."""
        return sum(self.counts[status] for status in FAILURES)

    @property
    def known(self) -> int:
        """Known bugs and quarantined cases."""
        return self.counts[Status.KNOWN_BUG] + self.counts[Status.QUARANTINED]

    @property
    def skipped(self) -> int:
        """Cases that did not run here."""
        return self.counts[Status.SKIPPED]

    @property
    def other(self) -> int:
        """Cases that neither passed nor failed."""
        return self.cases - self.passed - self.failed

    @property
    def unsupported(self) -> int:
        """Cases with kernels that the interpreter does not model."""
        return self.reasons[SkipReason.UNSUPPORTED]

    def cells(self) -> list[str | Text]:
        """The cells of a table: cases, passed, failed, known, skipped."""
        failed = Text(str(self.failed), style="bold red" if self.failed else "")
        return [str(self.cases), str(self.passed), failed, str(self.known), str(self.skipped)]

    def last_line(
        self,
        noun: str,
        planned: int,
        seconds: float,
        places: Iterable[str],
        notes: Sequence[str],
        *,
        reasons: bool = False,
        partial: bool = False,
    ) -> Text:
        """`12 cases in 3.4 s on interpreter: 11 passed, 1 failed; 2 not run`.

        Args:
            noun: of what was counted.
            planned: how many there were to be.
            seconds: the time they took.
            places: where they ran.
            notes: what follows the counts.
            reasons: whether to say why cases were skipped.
            partial: whether something did not run.
        """
        words = count(self.cases, noun)
        if planned > self.cases:
            words = f"{self.cases:,} of {count(planned, noun)}"
        words += f" in {seconds:.1f} s"
        if names := ", ".join(dict.fromkeys(places)):
            words += f" on {names}"
        parts = {status: f"{self.counts[status]} {status}" for status in Status}
        if reasons and self.reasons:
            each = ", ".join(f"{cases} {reason}" for reason, cases in self.reasons.most_common())
            parts[Status.SKIPPED] += f" ({each})"
        if shown := ", ".join(parts[status] for status in Status if self.counts[status]):
            words += f": {shown}"
        if self.unsupported:
            nothing = self.unsupported == self.cases
            notes = [*notes, unsupported_text(self.unsupported, nothing=nothing)]
        partial = partial or self.unsupported > 0
        style = "bold red" if self.failed else "bold yellow" if partial else "bold green"
        return Text("\n" + "; ".join([words, *notes]), style=style)


def numbers_table(first: str, columns: Iterable[str]) -> Table:
    """A table of one column of names, which fold, and columns of numbers."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


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
