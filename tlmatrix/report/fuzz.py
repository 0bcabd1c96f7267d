"""The report of `tlmatrix fuzz`: every fault as it is found, progress, and a table at the end.

It keeps faults and counts per spec, but no results, because a search may run for hours.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tlmatrix.report.coverage import gap_lines, summary
from tlmatrix.report.forecast import Forecast, duration_text
from tlmatrix.report.text import count, describe_result, unsupported_text
from tlmatrix.run.events import Summary
from tlmatrix.run.result import FAILURES, SkipReason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

    from tlmatrix.fuzz.search import FuzzFailure, FuzzReport
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.result import CaseResult

_INTERVAL = 10.0
"""Seconds between two lines of progress."""
_REASONS = 3
"""Reasons for skipped examples that are shown per spec."""
_GAPS = 12
"""Coverage gaps that are shown; `tlmatrix coverage` shows all."""


@dataclass
class _Searched:
    """Counts of one spec's search."""

    name: str
    counts: Counter[Status] = field(default_factory=Counter)
    seconds: float = 0.0
    counted: int = 0
    exhausted: bool = False
    skipped: Counter[str] = field(default_factory=Counter)
    """Skipped examples by reason."""


class FuzzReporter:
    """Prints the events of a search.

    Args:
        console: the text goes there.
        planned: the number of examples by path of the spec; None if time limits the search.
        seconds: the time limit of the search.
    """

    def __init__(
        self,
        console: Console,
        planned: Mapping[str, int] | None = None,
        seconds: float | None = None,
    ) -> None:
        self._planned = sum(planned.values()) if planned is not None else None
        self._forecast = Forecast(planned or {}, {})
        self._seconds = seconds
        self._stopped: Mapping[str, str] = {}
        self.failures: list[FuzzFailure] = []
        self._console = console
        self._width = min(console.width, 120)
        self._specs: dict[str, _Searched] = {}
        self._coverage: Coverage | None = None
        self._begin = self._last = time.monotonic()
        self._targets: dict[str, None] = {}
        self._unsupported = 0

    def begin(self, text: str) -> None:
        """Print what is about to run."""
        self._console.print(text, highlight=False)
        self._begin = self._last = time.monotonic()

    def ended(self, result: CaseResult) -> None:
        """Count an example that ended."""
        searched = self._specs.setdefault(result.path, _Searched(result.spec))
        searched.counts[result.status] += 1
        searched.seconds += result.seconds
        self._forecast.ended(result.path, result.seconds, time.monotonic())
        if result.status is Status.SKIPPED:
            searched.skipped[result.message] += 1
            self._unsupported += result.reason is SkipReason.UNSUPPORTED
        place = result.backend if result.arch in ("", result.backend) else result.arch
        if place:
            self._targets[place] = None
        self.tick()

    def found(self, found: FuzzFailure) -> None:
        """Print a fault."""
        self.failures.append(found)
        result = found.smallest
        self._console.print()
        words = f"{len(self.failures)}. {result.spec}: {result.status}"
        if found.tried:
            words += f"; the smallest of {found.tried} cases tried"
        if not found.ended:
            words += ", as far as it was shrunk"
        self._lines([(words, "bold red")])
        self._lines((f"   {line}", "") for line in describe_result(result, width=self._width - 3))

    def searched(self, report: FuzzReport) -> None:
        """Add the report of a job."""
        searched = self._specs.setdefault(report.path, _Searched(report.spec))
        searched.exhausted |= report.exhausted
        searched.counted += report.counted
        if report.coverage is not None:
            more = report.coverage
            self._coverage = more if self._coverage is None else self._coverage + more

    def note(self, text: str) -> None:
        """Print a note."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Print a line of progress every `_INTERVAL` seconds."""
        now = time.monotonic()
        if now - self._last >= _INTERVAL:
            self._last = now
            words = f"{count(self._examples, 'example')}  {now - self._begin:.0f} s"
            if self.failures:
                words += f"  {count(len(self.failures), 'fault')}"
            left = self._time_left(now)
            if left is not None:
                words += f"  {duration_text(left)} left"
            self._console.print(words, highlight=False)

    def _time_left(self, now: float) -> float | None:
        """The seconds left at the time `now`; None if too little is known."""
        if self._seconds is not None:
            return max(0.0, self._seconds - (now - self._begin))
        return None if self._planned is None else self._forecast.left(now)

    def end(
        self, results: str, stopped: Mapping[str, str] = {}, *, interrupted: bool = False
    ) -> None:
        """Print the table of specs, coverage gaps, and the totals.

        `stopped` has the reason, by path, for specs that were not searched to the end.
        """
        self._stopped = stopped
        self._console.print()
        self._console.print(self._table())
        self._lines(
            (f"{searched.name}: {count(number, 'example')} skipped: {reason}", "yellow")
            for searched in self._specs.values()
            for reason, number in searched.skipped.most_common(_REASONS)
        )
        if self._coverage is not None:
            self._print_coverage(self._coverage, results)
        self._console.print(self._totals(interrupted=interrupted), highlight=False)
        self._console.print(Text(f"results: {results}", overflow="fold"))

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        return any(self._counts[status] for status in FAILURES)

    @property
    def nothing_judged(self) -> bool:
        """Whether the interpreter supports none of the kernels, so that no example was checked."""
        return 0 < self._unsupported == self._examples

    def summary(self, exit_status: int) -> Summary:
        """The summary for the results file."""
        counts = {str(status): number for status, number in self._counts.items()}
        return Summary(counts, round(time.monotonic() - self._begin, 3), exit_status)

    @property
    def _counts(self) -> Counter[Status]:
        counts: Counter[Status] = Counter()
        for searched in self._specs.values():
            counts += searched.counts
        return counts

    @property
    def _examples(self) -> int:
        return self._counts.total()

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
        table.add_column("spec", overflow="fold")
        for name in ("examples", "passed", "failed", "known", "skipped", "faults", "seconds"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("")
        for path, searched in sorted(self._specs.items()):
            counts = searched.counts
            failed = sum(counts[status] for status in FAILURES)
            faults = sum(found.smallest.path == path for found in self.failures)
            table.add_row(
                searched.name,
                str(counts.total()),
                str(counts[Status.PASSED]),
                Text(str(failed), style="bold red" if failed else ""),
                str(counts[Status.KNOWN_BUG] + counts[Status.QUARANTINED]),
                str(counts[Status.SKIPPED]),
                str(faults),
                f"{searched.seconds:.1f}",
                "exhausted" if searched.exhausted else "",
            )
        return table

    def _print_coverage(self, coverage: Coverage, results: str) -> None:
        counted = sum(searched.counted for searched in self._specs.values())
        title = f"coverage of {count(counted, 'measured example')}: "
        gaps = list(gap_lines(coverage, self._width))
        lines = [f"\n{title}{summary(coverage)}"]
        if gaps:
            lines += ["not covered:", *(f"  {line}".rstrip() for line in gaps[:_GAPS])]
        if len(gaps) > _GAPS:
            command = f"tlmatrix coverage {shlex.quote(results)}"
            lines.append(f"  … and {len(gaps) - _GAPS} more lines: {command}")
        self._lines((line, "") for line in lines)

    def _totals(self, *, interrupted: bool) -> Text:
        counts = self._counts
        missing = max(0, (self._planned or 0) - self._examples)
        words = count(self._examples, "example")
        if missing:
            words = f"{self._examples:,} of {count(self._planned or 0, 'example')}"
        words += f" in {time.monotonic() - self._begin:.1f} s"
        if self._targets:
            words += f" on {', '.join(self._targets)}"
        parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
        words += f": {', '.join(parts)}" if parts else ""
        if self.failures:
            words += f"; {count(len(self.failures), 'fault')}"
        if interrupted:
            words += "; interrupted"
        if missing:
            reasons = [f"{path}: {reason}" for path, reason in sorted(self._stopped.items())]
            words += f"; {missing:,} not run"
            words += f" ({'; '.join(reasons)})" if reasons else ""
        if self._unsupported:
            words += f"; {unsupported_text(self._unsupported, nothing=self.nothing_judged)}"
        partial = interrupted or self._unsupported
        style = "bold red" if self.failed else "bold yellow" if partial else "bold green"
        return Text(f"\n{words}", style=style)

    def _lines(self, lines: Iterable[tuple[str, str]]) -> None:
        for line, style in lines:
            # Without wrapping, so that commands can be copied.
            self._console.print(Text(line, style=style), soft_wrap=True, highlight=False)
