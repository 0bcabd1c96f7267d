"""A run of cases in the process that reports it: its results file, counts and events."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tlmatrix.exit_codes import OutputError
from tlmatrix.options.table import ARCH, BACKEND, COVERAGE, NO_FUZZ, SEED, TIER
from tlmatrix.results_file import PACKAGES, make_folder, resume_command, shown_path, versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.config import Config
    from tlmatrix.engine.selection import ShardPlan
    from tlmatrix.engine.settings import RunSettings
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.events import Event, RunHeader
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult, Status


class Listener(Protocol):
    """A report that receives the events of a run."""

    def handle(self, event: Event) -> None:
        """Handle an event."""

    def note(self, text: str) -> None:
        """Print a note for the user."""


class Run:
    """A run from its first event to its last.

    Args:
        settings: its settings.
        project: the configuration of the project.
        listener: receives the events; None if nothing does.
        paths: the specs and cases that the user gave.
        command: the command line.
        select: the expression of `-k`.
        folder: the folder to which paths of results are relative.
        roots: folders, besides those of specs, from which entries are imported; by default that of
            the project.

    Attributes:
        planned: the number of cases of the run.
        began: whether there were cases to run.
        unrecorded: why the results file lacks results; empty if it has all.
    """

    def __init__(
        self,
        settings: RunSettings,
        project: Config,
        listener: Listener | None = None,
        *,
        paths: Sequence[str] = (),
        command: str = "",
        select: str = "",
        folder: Path | None = None,
        roots: Sequence[Path] = (),
    ) -> None:
        self.roots = tuple(roots) or (project.root,)
        self.settings = settings
        self.planned = 0
        self.began = False
        self.unrecorded = ""
        self.sources: Mapping[str, Mapping[str, str]] = {}
        self._project = project
        self._listener = listener
        self._facts: dict[str, Any] = {"paths": tuple(paths), "command": command, "select": select}
        self._folder = folder or Path.cwd()
        self._begin = 0.0
        self._results: dict[tuple[str, str], CaseResult] = {}

    @cached_property
    def records(self) -> RecordsWriter:
        """The results file, which the first use creates."""
        from tlmatrix.run.records import RecordsWriter

        make_folder(self.settings.results, self._project)
        return RecordsWriter(self.settings.results)

    @property
    def shown_results(self) -> str:
        """The path of the results file relative to the working directory."""
        return shown_path(self.settings.results)

    @property
    def resume_command(self) -> str:
        """The command that continues this run."""
        return resume_command(self.settings.results)

    @property
    def counts(self) -> Counter[Status]:
        """The number of cases by status."""
        return Counter(result.status for result in self._results.values())

    @property
    def missing(self) -> int:
        """The number of planned cases without a result."""
        return self.planned - len(self._results)

    @property
    def unsupported(self) -> int:
        """The number of cases skipped because the interpreter does not support them."""
        from tlmatrix.run.result import SkipReason

        return sum(each.reason is SkipReason.UNSUPPORTED for each in self._results.values())

    @property
    def nothing_judged(self) -> bool:
        """Whether the interpreter supports no kernel of the run, so that no case was checked."""
        return 0 < self.unsupported == len(self._results)

    @property
    def failed(self) -> bool:
        """Whether a case failed."""
        return any(result.failed for result in self._results.values())

    def has_result(self, path: str, case: str) -> bool:
        """Whether a case has its result."""
        return (path, case) in self._results

    def begin(
        self,
        cases: Mapping[str, Sequence[str]],
        plan: ShardPlan | None = None,
        *,
        place: str = "",
    ) -> None:
        """Begin the run of cases, ids by path of the spec: write the header, send `RunStarted`.

        Args:
            cases: the cases.
            plan: the plan of which they are a shard.
            place: where they run, if that is worth saying.

        Raises:
            OutputError: the results file cannot be written.
        """
        from tlmatrix.run.events import RunStarted
        from tlmatrix.run.sources import sources_of

        self.sources = sources_of(cases, self._folder, self.roots)
        header = self._header(plan)
        self.records.header(header)
        if self.records.error:
            raise OutputError(
                f"{self.shown_results}: the results cannot be written: {self.records.error}; "
                "another place is --tlmatrix-results PATH (`tlmatrix run --results PATH`)"
            )
        self.records.plan(cases)
        self._begin, self.began = time.monotonic(), True
        counts = {path: len(ids) for path, ids in cases.items()}
        self.planned = sum(counts.values())
        earlier = Counter(path for path, _ in self.settings.passed_before)
        words = "; ".join(filter(None, [str(plan or ""), place]))
        self._send(RunStarted(counts, self.shown_results, dict(earlier), words, header))

    def _header(self, plan: ShardPlan | None) -> RunHeader:
        from tlmatrix.run.events import RunHeader

        options = self.settings.options
        return RunHeader(
            tier=options[TIER],
            backend=options[BACKEND],
            seed=options[SEED],
            architectures=tuple(options[ARCH] or ()),
            fuzz=not options[NO_FUZZ],
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            folder=str(self._folder),
            versions=versions(*PACKAGES),
            shard=str(plan.shard) if plan is not None else "",
            plan=plan.name if plan is not None else "",
            times=self.settings.times,
            sources=self.sources,
            **self._facts,
        )

    def add(self, result: CaseResult) -> None:
        """Count a result and send `CaseFinished`."""
        from tlmatrix.run.events import CaseFinished

        self._results[result.path, result.case] = result
        self._send(CaseFinished(result))

    def end(self, exit_status: int, *, interrupted: bool = False, stopped: str = "") -> None:
        """End the run: write the summary unless it was interrupted, send `RunFinished`.

        `stopped` is why cases did not run.
        """
        from tlmatrix.run.events import RunFinished, Summary

        seconds = round(time.monotonic() - self._begin, 3)  # as recorded, for `show`
        if not interrupted:
            counts = {str(status): count for status, count in self.counts.items()}
            self.records.summary(Summary(counts, seconds, exit_status))
        self.unrecorded = self.unrecorded or self.records.error
        self._send(
            RunFinished(
                dict(self.counts),
                seconds,
                interrupted,
                self.covered,
                self.settings.options[COVERAGE],
                stopped,
                self.unrecorded,
            )
        )

    @cached_property
    def covered(self) -> Coverage | None:
        """The kernel coverage of the recorded cases; None if it was not counted."""
        if self.settings.options[COVERAGE] == "off" or not self.began:
            return None
        from tlmatrix.run.records import RecordsError, read_records

        try:
            return read_records(self.settings.results).coverage() or None
        except (OSError, RecordsError):
            return None

    def close(self) -> None:
        """Close the results file."""
        if "records" in self.__dict__:
            self.records.close()

    def note(self, text: str) -> None:
        """Show a note."""
        if self._listener is not None:
            self._listener.note(text)

    def _send(self, event: Event) -> None:
        if self._listener is not None:
            self._listener.handle(event)
