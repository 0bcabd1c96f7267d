"""The report of `tlmatrix run`: progress, then a table of specs and the findings.

Progress is a bar on a terminal, and otherwise (CI, a pipe) a line every few seconds.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tlmatrix.report.coverage import coverage_lines
from tlmatrix.report.tally import Forecast, Tally, duration_text, numbers_table
from tlmatrix.report.text import count, describe_group
from tlmatrix.run.events import CaseFinished, Event, RunFinished, RunStarted
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.triage.groups import Group, group_failures
from tlmatrix.words import ellipsis

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tlmatrix.run.records import RunRecords

_INTERVAL = 10.0
"""Seconds between two lines of progress without a terminal."""
_MAX_GROUPS = 20
"""Most groups of failures that are shown."""
_COLUMNS = 62
"""Width of the columns of numbers."""
_MIN_ID = 24
"""Least width of the column of case ids."""
_KERNEL_COLUMNS = ("kernels", "failed", "registers", "spills", "shared", "tensor", "seconds")


class TerminalReport:
    """Prints the events of a run to `console`.

    Args:
        console: prints.
        verbosity: as in pytest: 1 for every case and findings in full, -1 for only findings and the
            last line.
        earlier: the mean seconds of a case in earlier runs, by the absolute path of its spec.
    """

    def __init__(
        self, console: Console, *, verbosity: int = 0, earlier: Mapping[Path, float] | None = None
    ) -> None:
        self._console = console
        self._earlier = earlier or {}
        self._forecast = Forecast({}, {})
        self._verbosity = verbosity
        self._results: list[CaseResult] = []
        self._started: RunStarted | None = None
        self._progress: Progress | None = None
        self._total = 0
        self._failed = 0
        self._last_line = 0.0
        self._begin = 0.0

    def handle(self, event: Event) -> None:
        """Print an event."""
        match event:
            case RunStarted():
                self._on_start(event)
            case CaseFinished():
                self._on_case(event.result)
            case RunFinished():
                self._on_end(event)

    def show(self, records: RunRecords, path: str) -> None:
        """Print a recorded run, whose results file is `path`."""
        header, results = records.header, records.results
        specs = {result.path for result in results}
        self._total = len(results)
        self._started = RunStarted(Counter(result.path for result in results), path)
        if self._verbosity >= 0:
            words = f"{count(len(results), 'case')} of {count(len(specs), 'spec')}; "
            self.note(f"{words}{header.tier} tier, {header.started}: {header.command}")
        if records.incomplete:
            self.note(records.incomplete)
        for result in results:
            self._results.append(result)
            self._print_case(result)
        seconds = sum(result.seconds for result in results)
        if records.summary is not None:
            seconds = records.summary.seconds
        coverage = records.coverage() or None
        self._on_end(RunFinished(records.counts(), seconds, interrupted=False, coverage=coverage))

    def announce(self, text: str) -> None:
        """Show an activity before the number of cases is known."""
        self._show_bar(text, None)

    def note(self, text: str) -> None:
        """Print a note, and remove the progress bar."""
        self.close()
        folded = self._console.is_terminal
        self._console.print(text, markup=False, highlight=False, soft_wrap=not folded)

    def close(self) -> None:
        """Remove the progress bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _on_start(self, event: RunStarted) -> None:
        """Print the number of cases."""
        self.close()
        self._begin = time.monotonic()
        self._started = event
        self._total = sum(event.cases.values())
        means = {path: self._earlier.get(Path(path).resolve(), 0.0) for path in event.cases}
        self._forecast = Forecast(event.cases, means)
        words = f"{count(self._total, 'case')} of {count(len(event.cases), 'spec')}"
        earlier = sum(event.earlier.values())
        if earlier:
            words += f"; {earlier} passed before and are not repeated"
        if event.place:
            words += f"; {event.place}"
        if self._verbosity >= 0:
            self._console.print(words, highlight=False)
        self._show_bar("importing PyTorch and TileLang, then the first cases", self._total)

    def _show_bar(self, words: str, total: int | None) -> None:
        if self._console.is_terminal and self._verbosity >= 0:
            self._progress = self._bar()
            done = len(self._results)
            self._progress.add_task(words, total=total, completed=done, failed="", left="")
            self._progress.start()

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            expand=True,
        )

    def _on_case(self, result: CaseResult) -> None:
        self._results.append(result)
        self._failed += result.failed
        done = len(self._results)
        failed = f"{self._failed} failed" if self._failed else ""
        self._print_case(result)
        now = time.monotonic()
        self._forecast.ended(result.path, result.seconds, now)
        if self._progress is not None:
            self._progress.update(
                self._progress.task_ids[0],
                completed=done,
                left=self._time_left(now),
                description=escape(result.spec),
                failed=f"[red]{failed}[/red]" if failed else "",
            )
            return
        if self._verbosity == 0 and (done == 1 or now - self._last_line >= _INTERVAL):
            self._last_line = now
            spent = duration_text(now - self._begin)
            words = [f"{done}/{self._total}", result.spec, spent, self._time_left(now), failed]
            self._console.print("  ".join(filter(None, words)), markup=False, highlight=False)

    def _time_left(self, now: float) -> str:
        left = self._forecast.left(now)
        return "" if left is None else f"{duration_text(left)} left"

    def _print_case(self, result: CaseResult) -> None:
        if self._verbosity > 0:
            line = f"{result.status:<11} {result.seconds:6.2f} s  {result.node}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _on_end(self, event: RunFinished) -> None:
        self.close()
        if self._results:
            if self._verbosity >= 0:
                self._print_tables()
            self._print_groups(group_failures(self._results))
            if self._verbosity >= 0:
                self._print_other_statuses()
        self._print_coverage(event)
        self._console.print(self._last_words(event), highlight=False)
        if self._started is None or not self._started.results:
            return
        if event.unrecorded:
            words = f"results are missing in {self._started.results}: {event.unrecorded}"
            self._console.print(Text(words, style="bold red", overflow="fold"))
        elif self._verbosity >= 0:
            self._console.print(Text(f"results: {self._started.results}", overflow="fold"))

    def _print_tables(self) -> None:
        self._console.print(self._table())
        kernels = kernel_table(self._results)
        if kernels is not None:
            self._console.print()
            self._console.print(kernels)

    def _table(self) -> Table:
        paths = sorted({result.path for result in self._results})
        tallies = [Tally(each for each in self._results if each.path == path) for path in paths]
        names = {result.path: result.spec for result in self._results}
        columns = ["cases", "passed", "failed", "known", "skipped", "seconds", "slowest"]
        # A wide terminal has room for the id of the slowest case.
        left = self._console.width - max(map(len, names.values())) - _COLUMNS
        table = numbers_table("spec", columns if left >= 0 else columns[:-1])
        if left >= _MIN_ID:
            table.add_column("slowest case", no_wrap=True)
        for path, tally in zip(paths, tallies, strict=True):
            assert tally.slowest is not None
            row = [names[path], *tally.cells(), f"{tally.seconds:.1f}"]
            row += [f"{tally.slowest.seconds:.2f}"] if left >= 0 else []
            row += [ellipsis(tally.slowest.case, left)] if left >= _MIN_ID else []
            table.add_row(*row)
        return table

    def _print_groups(self, groups: Sequence[Group]) -> None:
        width = min(self._console.width, 120)
        for number, group in enumerate(groups[:_MAX_GROUPS], 1):
            self._console.print()
            self._lines(_group_lines(group, number, width, brief=self._verbosity <= 0))
        if len(groups) > _MAX_GROUPS:
            more = groups[_MAX_GROUPS:]
            cases = sum(len(group.results) for group in more)
            self._console.print(
                f"\n{len(more)} more causes with {count(cases, 'case')} are in the results file",
                highlight=False,
            )

    def _print_other_statuses(self) -> None:
        """Print the numbers of known bugs and of cases that did not run."""
        others: Counter[tuple[str, str]] = Counter()
        for result in self._results:
            if result.status in (Status.SKIPPED, Status.QUARANTINED, Status.KNOWN_BUG):
                others[(result.spec, f"{result.status}: {result.message}")] += 1
        if others:
            self._console.print()
        for (spec, words), cases in sorted(others.items()):
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
        """The number of cases without a result."""
        return self._total - len(self._results)

    def _last_words(self, event: RunFinished) -> Text:
        tally, missing = Tally(self._results), self.missing
        notes = []
        # Workers may stop before their last results arrive.
        if event.interrupted or missing > 0:
            early = "stopped early, " if event.interrupted else ""
            stopped = f" ({event.stopped})" if missing > 0 and event.stopped else ""
            notes.append(f"{early}{missing} not run{stopped}")
        return tally.last_line(
            "case",
            self._total,
            event.seconds,
            map(_place, tally.places),
            notes,
            reasons=True,
            partial=bool(notes),
        )

    def _lines(self, lines: Iterable[tuple[str, str]]) -> None:
        for line, style in lines:
            # Without wrapping, so that commands can be copied.
            self._console.print(Text(line, style=style), soft_wrap=True, highlight=False)


def _group_lines(
    group: Group, number: int, width: int, *, brief: bool
) -> Iterator[tuple[str, str]]:
    title, *lines = describe_group(group, width=width - 3, brief=brief)
    yield f"{number}. {title}", "bold red"
    for line in lines:
        yield f"   {line}", "cyan" if line.startswith("  repro ") else ""


def _place(place: tuple[str, str]) -> str:
    """`interpreter`, or `cuda (sm_90)`."""
    backend, arch = place
    return backend if arch in ("", backend) else f"{backend} ({arch})"


# Kernels of the backend `compile` -------------------------------------------------------------


def kernel_table(results: Iterable[CaseResult]) -> Table | None:
    """The table of compiled kernels, by name and architecture; None if there are none.

    A row has the number of distinct kernels of one name (dtypes, head dims, masks) and the maximum
    that any of them uses: registers and bytes of spills per thread, bytes of shared memory and
    columns of tensor memory per block. `seconds` is the time of lowering and assembling all of
    them, also of those from the cache.
    """
    rows = kernel_rows(results)
    if not rows:
        return None
    table = numbers_table("kernel", ("arch", *_KERNEL_COLUMNS))
    table.columns[1].justify = "left"
    for row in rows:
        failed = Text(str(row["failed"]), style="bold red" if row["failed"] else "")
        table.add_row(
            row["kernel"],
            row["arch"],
            str(row["kernels"]),
            failed,
            *(str(row[name]) for name in ("registers", "spills", "shared_memory", "tensor_memory")),
            f"{row['seconds']:.0f}",
        )
    return table


def kernel_rows(results: Iterable[CaseResult]) -> list[dict[str, Any]]:
    """The rows of the table, by kernel name and architecture; equal kernels count once."""
    seen: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for result in results:
        for fact in result.kernels:
            by_key = seen.setdefault((fact["kernel"], fact["arch"]), {})
            parts = by_key.setdefault(fact["key"], [])
            if fact not in parts:
                parts.append(fact)
    rows = []
    for (kernel, arch), by_key in sorted(seen.items(), key=lambda item: kernel_order(*item[0])):
        facts = [fact for parts in by_key.values() for fact in parts]
        row: dict[str, Any] = {"kernel": kernel, "arch": arch, "kernels": len(by_key)}
        row["failed"] = sum(bool(parts[0].get("error")) for parts in by_key.values())
        for name in ("registers", "spills", "shared_memory", "tensor_memory"):
            row[name] = max(fact.get(name, 0) for fact in facts)
        row["seconds"] = sum(
            parts[0].get("lower_seconds", 0) + parts[0].get("assemble_seconds", 0)
            for parts in by_key.values()
        )
        rows.append(row)
    return rows


def kernel_order(kernel: str, arch: str) -> tuple[str, int, str]:
    """The sort key of a kernel in tables: its name, then the architecture."""
    digits = "".join(letter for letter in arch if letter.isdigit())
    return (kernel, int(digits or 0), arch)
