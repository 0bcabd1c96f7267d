"""The report of `tlmatrix fuzz`: every fault as it is found, progress, and a table at the end.

It keeps faults and counts per spec, but no results, because a search may run for hours.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from tlmatrix.report.coverage import gap_lines, summary
from tlmatrix.report.tally import Forecast, Tally, duration_text, numbers_table
from tlmatrix.report.text import count, describe_result
from tlmatrix.run.events import Summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tlmatrix.fuzz.search import FuzzFailure, FuzzReport
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.result import CaseResult

_INTERVAL = 10.0
"""Seconds between two lines of progress."""
_REASONS = 3
"""Reasons for skipped examples that are shown per spec."""
_GAPS = 12
"""Coverage gaps that are shown; `tlmatrix coverage` shows all."""


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
        self._names: dict[str, str] = {}
        self._specs: dict[str, Tally] = {}
        self._all = Tally()
        self._counted = 0
        self._exhausted: set[str] = set()
        self._coverage: Coverage | None = None
        self._begin = self._last = time.monotonic()

    def begin(self, text: str) -> None:
        """Print what is about to run."""
        self._console.print(text, highlight=False)
        self._begin = self._last = time.monotonic()

    def ended(self, result: CaseResult) -> None:
        """Count an example that ended."""
        self._of(result.path, result.spec).add(result)
        self._all.add(result)
        self._forecast.ended(result.path, result.seconds, time.monotonic())
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
        self._of(report.path, report.spec)
        self._counted += report.counted
        if report.exhausted:
            self._exhausted.add(report.path)
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
            words = f"{count(self._all.cases, 'example')}  {now - self._begin:.0f} s"
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
            (f"{self._names[path]}: {count(number, 'example')} skipped: {reason}", "yellow")
            for path, tally in self._specs.items()
            for reason, number in tally.messages.most_common(_REASONS)
        )
        if self._coverage is not None:
            self._print_coverage(self._coverage, results)
        self._console.print(self._totals(interrupted=interrupted), highlight=False)
        self._console.print(Text(f"results: {results}", overflow="fold"))

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        return self._all.failed > 0

    @property
    def nothing_judged(self) -> bool:
        """Whether the interpreter supports none of the kernels, so that no example was checked."""
        return 0 < self._all.unsupported == self._all.cases

    def summary(self, exit_status: int) -> Summary:
        """The summary for the results file."""
        counts = {str(status): number for status, number in self._all.counts.items()}
        return Summary(counts, round(time.monotonic() - self._begin, 3), exit_status)

    def _of(self, path: str, name: str) -> Tally:
        """The counts of one spec."""
        self._names[path] = name
        return self._specs.setdefault(path, Tally())

    def _table(self) -> Table:
        numbers = ("examples", "passed", "failed", "known", "skipped", "faults", "seconds")
        table = numbers_table("spec", numbers)
        table.add_column("")
        faults = Counter(found.smallest.path for found in self.failures)
        for path, tally in sorted(self._specs.items()):
            table.add_row(
                self._names[path],
                *tally.cells(),
                str(faults[path]),
                f"{tally.seconds:.1f}",
                "exhausted" if path in self._exhausted else "",
            )
        return table

    def _print_coverage(self, coverage: Coverage, results: str) -> None:
        title = f"coverage of {count(self._counted, 'measured example')}: "
        gaps = list(gap_lines(coverage, self._width))
        lines = [f"\n{title}{summary(coverage)}"]
        if gaps:
            lines += ["not covered:", *(f"  {line}".rstrip() for line in gaps[:_GAPS])]
        if len(gaps) > _GAPS:
            command = f"tlmatrix coverage {shlex.quote(results)}"
            lines.append(f"  … and {len(gaps) - _GAPS} more lines: {command}")
        self._lines((line, "") for line in lines)

    def _totals(self, *, interrupted: bool) -> Text:
        planned = self._planned or 0
        notes = [count(len(self.failures), "fault")] if self.failures else []
        notes += ["interrupted"] if interrupted else []
        if planned > self._all.cases:
            reasons = [f"{path}: {reason}" for path, reason in sorted(self._stopped.items())]
            words = f"{planned - self._all.cases:,} not run"
            notes.append(f"{words} ({'; '.join(reasons)})" if reasons else words)
        return self._all.last_line(
            "example",
            planned,
            time.monotonic() - self._begin,
            # The architecture says which backend it was.
            (arch or backend for backend, arch in self._all.places),
            notes,
            partial=interrupted,
        )

    def _lines(self, lines: Iterable[tuple[str, str]]) -> None:
        for line, style in lines:
            # Without wrapping, so that commands can be copied.
            self._console.print(Text(line, style=style), soft_wrap=True, highlight=False)
