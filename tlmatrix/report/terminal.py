"""The report of `tlmatrix run`: progress while it runs, then a table a spec and the findings.

On a terminal the progress is one line that changes; elsewhere (CI, a pipe) it is a plain line
now and then. Reads events only.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tlmatrix.report.coverage import coverage_lines
from tlmatrix.report.kernels import kernel_table
from tlmatrix.report.text import count, describe_group, unsupported_text
from tlmatrix.run.events import CaseFinished, Event, Preparing, RunFinished, RunStarted
from tlmatrix.run.result import FAILURES, CaseResult, SkipReason, Status
from tlmatrix.triage.groups import Group, group_failures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

__all__ = ["TerminalReport"]

_INTERVAL = 10.0
"""Seconds between two lines of progress where there is no terminal."""
_GROUPS = 20
"""Causes that are shown; a run with more has one broken part, not twenty."""
_COLUMNS = 62
"""Width of the columns of numbers."""
_LEAST = 24
"""Less than this of an id says nothing."""


class TerminalReport:
    """Prints a run to `console` as its events arrive.

    `verbosity` is as in pytest: 1 for every case and findings in full, -1 for findings and the last
    line alone.
    """

    def __init__(self, console: Console, *, verbosity: int = 0) -> None:
        self._console = console
        self._verbosity = verbosity
        self._results: list[CaseResult] = []
        self._started: RunStarted | None = None
        self._progress: Progress | None = None
        self._total = 0
        self._failed = 0
        self._last_line = 0.0
        self._begin = 0.0

    def handle(self, event: Event) -> None:
        """Show what happened."""
        match event:
            case RunStarted():
                self._on_start(event)
            case Preparing(words):
                self._describe(words)
            case CaseFinished():
                self._on_case(event.result)
            case RunFinished():
                self._on_end(event)

    def announce(self, words: str) -> None:
        """Say what happens while nothing can be counted yet."""
        self._show_bar(words, None)

    def note(self, words: str) -> None:
        """Say something in place of the progress."""
        self.close()
        folded = self._console.is_terminal
        self._console.print(words, markup=False, highlight=False, soft_wrap=not folded)

    def close(self) -> None:
        """Leave the terminal as it was, also after an error elsewhere."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _on_start(self, event: RunStarted) -> None:
        """Cases are known, of a run in parts also later: then those that are left."""
        self.close()
        self._begin = time.monotonic()
        cases = sum(event.cases.values())
        self._total = len(self._results) + cases
        if self._started is None:
            self._started = event
            words = f"{count(cases, 'case')} of {count(len(event.cases), 'spec')}"
            earlier = sum(event.earlier.values())
            if earlier:
                words += f"; {earlier} passed before and are not run again"
        else:
            words = f"{count(cases, 'case')} left"
        if event.place:
            words += f"; {event.place}"
        if self._verbosity >= 0:
            self._console.print(words, highlight=False)
        self._show_bar("importing PyTorch and TileLang, then the first cases", self._total)

    def _show_bar(self, words: str, total: int | None) -> None:
        if self._console.is_terminal and self._verbosity >= 0:
            self._progress = self._bar()
            done = len(self._results)
            self._progress.add_task(words, total=total, completed=done, failed="")
            self._progress.start()

    def _describe(self, words: str) -> None:
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description=words)

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            expand=True,
        )

    def _on_case(self, result: CaseResult) -> None:
        self._results.append(result)
        self._failed += result.failed
        done = len(self._results)
        failed = f"{self._failed} failed" if self._failed else ""
        if self._verbosity > 0:
            line = f"{result.status:<11} {result.seconds:6.2f} s  {result.node}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        if self._progress is not None:
            self._progress.update(
                self._progress.task_ids[0],
                completed=done,
                description=escape(result.spec),
                failed=f"[red]{failed}[/red]" if failed else "",
            )
            return
        now = time.monotonic()
        if self._verbosity == 0 and (done == 1 or now - self._last_line >= _INTERVAL):
            self._last_line = now
            words = f"{done}/{self._total}  {result.spec}  {now - self._begin:.0f} s"
            self._console.print(words + (f"  {failed}" if failed else ""), highlight=False)

    def _on_end(self, event: RunFinished) -> None:
        self.close()
        if self._results:
            if self._verbosity >= 0:
                self._print_tables()
            self._print_groups(group_failures(self._results))
            if self._verbosity >= 0:
                self._print_aside()
        self._print_coverage(event)
        self._console.print(self._last_words(event), highlight=False)
        if self._started is not None and self._started.results and self._verbosity >= 0:
            self._console.print(Text(f"results: {self._started.results}", overflow="fold"))

    def _print_tables(self) -> None:
        self._console.print(self._table())
        kernels = kernel_table(self._results)
        if kernels is not None:
            self._console.print()
            self._console.print(kernels)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
        table.add_column("spec", overflow="fold")
        paths = sorted({result.path for result in self._results})
        names = {result.path: result.spec for result in self._results}
        # What the other columns leave of a wide terminal names the slowest case.
        left = self._console.width - max(map(len, names.values())) - _COLUMNS
        columns = ["cases", "passed", "failed", "known", "skipped", "seconds", "slowest"]
        for name in columns if left >= 0 else columns[:-1]:
            table.add_column(name, justify="right", no_wrap=True)
        if left >= _LEAST:
            table.add_column("slowest case", no_wrap=True)
        for path in paths:
            table.add_row(*_row([item for item in self._results if item.path == path], left))
        return table

    def _print_groups(self, groups: Sequence[Group]) -> None:
        width = min(self._console.width, 120)
        for number, group in enumerate(groups[:_GROUPS], 1):
            self._console.print()
            self._lines(_group_lines(group, number, width, brief=self._verbosity <= 0))
        if len(groups) > _GROUPS:
            more = groups[_GROUPS:]
            cases = sum(len(group.results) for group in more)
            self._console.print(
                f"\n{len(more)} more causes with {count(cases, 'case')} are in the results file",
                highlight=False,
            )

    def _print_aside(self) -> None:
        """What did not fail and yet should not go unseen: known bugs, cases that did not run."""
        aside: Counter[tuple[str, str]] = Counter()
        for result in self._results:
            if result.status in (Status.SKIPPED, Status.QUARANTINED, Status.KNOWN_BUG):
                aside[(result.spec, f"{result.status}: {result.message}")] += 1
        if aside:
            self._console.print()
        for (spec, words), cases in sorted(aside.items()):
            line = f"{spec}: {count(cases, 'case')} {words}"
            self._console.print(Text(line, style="yellow"), soft_wrap=not self._console.is_terminal)

    def _print_coverage(self, event: RunFinished) -> None:
        if event.coverage is None:
            return
        results = self._started.results if self._started is not None else None
        command = f"tlmatrix coverage {shlex.quote(results)}" if results else ""
        width = min(self._console.width, 120)
        self._console.print()
        for line in coverage_lines(event.coverage, command, event.detail, width):
            self._console.print(Text(line), soft_wrap=True)

    @property
    def missing(self) -> int:
        """How many cases have no result, so far."""
        return self._total - len(self._results)

    def _last_words(self, event: RunFinished) -> Text:
        counts = Counter(result.status for result in self._results)
        parts = [f"{cases} {status}" for status in Status if (cases := counts[status])]
        bad = any(counts[status] for status in FAILURES)
        words = f"{count(len(self._results), 'case')} in {event.seconds:.1f} s"
        places = dict.fromkeys(_place(result) for result in self._results if result.backend)
        if places:
            words += f" on {', '.join(places)}"
        if parts:
            words += ": " + ", ".join(parts)
        # Workers that are told to stop may do so before this process hears of it.
        missing = self.missing
        if event.interrupted:
            words += f"; stopped early, {missing} not run"
        elif missing > 0:
            words += f"; {missing} not run"
        refused = sum(result.reason is SkipReason.UNSUPPORTED for result in self._results)
        if refused:
            words += f"; {unsupported_text(refused, nothing=refused == len(self._results))}"
        partial = event.interrupted or missing > 0 or refused > 0
        style = "bold red" if bad else "bold yellow" if partial else "bold green"
        return Text(f"\n{words}", style=style)

    def _lines(self, lines: Iterable[tuple[str, str]]) -> None:
        for line, style in lines:
            # Commands must survive being copied: rich may not break them.
            self._console.print(Text(line, style=style), soft_wrap=True, highlight=False)


def _row(results: Sequence[CaseResult], left: int) -> list[str | Text]:
    counts = Counter(result.status for result in results)
    failed = sum(counts[status] for status in FAILURES)
    slowest = max(results, key=lambda result: result.seconds)
    row: list[str | Text] = [
        results[0].spec,
        str(len(results)),
        str(counts[Status.PASSED]),
        Text(str(failed), style="bold red" if failed else ""),
        str(counts[Status.KNOWN_BUG] + counts[Status.QUARANTINED]),
        str(counts[Status.SKIPPED]),
        f"{sum(result.seconds for result in results):.1f}",
        f"{slowest.seconds:.2f}",
    ]
    if left < 0:
        return row[:-1]
    if left < _LEAST:
        return row
    return [*row, slowest.case if len(slowest.case) <= left else slowest.case[: left - 1] + "…"]


def _group_lines(
    group: Group, number: int, width: int, *, brief: bool
) -> Iterator[tuple[str, str]]:
    title, *lines = describe_group(group, width=width - 3, brief=brief)
    yield f"{number}. {title}", "bold red"
    for line in lines:
        yield f"   {line}", "cyan" if line.startswith("  repro ") else ""


def _place(result: CaseResult) -> str:
    """`interpreter`, or `cuda (sm_90)`."""
    if result.arch in ("", result.backend):
        return result.backend
    return f"{result.backend} ({result.arch})"
