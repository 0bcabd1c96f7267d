"""Results counted by status, for the rows and the last line of reports."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tlmatrix.report.text import count, unsupported_text
from tlmatrix.run.result import FAILURES, SkipReason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
