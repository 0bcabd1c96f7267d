"""The interpreter's sanitizers as a check: what kernels do to memory, values right or not.

The first run of a case, the one between guards and on poisoned memory, is the watched one, so
that the check adds no run. What memory nobody has written is told by the poison it still holds,
through all kernels of the entry and whoever allocated it.

A report is a fault by itself, but for two kinds that only explain wrong values: an operation that
makes a NaN, and memory left unwritten that is no result. Reports of one line are one finding, and
findings of one kind in one kernel as well; wrong values of a tensor that a finding is about are
told with it.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding
from tlmatrix.check.foreign import depends_on_other_sequences
from tlmatrix.check.memory import guarded
from tlmatrix.check.ownership import Ownership
from tlmatrix.check.poison import MARKS, poisoned
from tlmatrix.check.running import SeveralRanks
from tlmatrix.tracebacks import short_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.interpreter import Report
    from tlmatrix.problem.model import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec

__all__ = ["Watch"]

_CHECK = "sanitizers"
_MOST_PLACES = 6
"""Further lines of one kind in one kernel that a finding lists."""

_RANK = (
    "bounds", "fragments", "sequences", "races", "barriers", "lanes", "uninitialised", "unwritten",
    "budget", "overreads", "guarded", "nonfinite",
)  # fmt: skip
"""Which report of a line leads: the cause before what follows from it."""

_STOPPING = frozenset({"bounds", "fragments"})
"""What stops a kernel that is not watched."""

_WITH_VALUES = frozenset({"numeric", "gradients", "poison"})

_HINTS = {
    "bounds": "nothing guards this access: on a GPU it touches whatever lies there",
    "fragments": "nothing guards this access: a fragment smaller than the loop over it?",
    "guarded": "TileLang's guard skips it; a tile that is cut here is meant to be?",
    "races": "blocks run in any order: give every element one owner, add atomically, or use a "
    "second kernel",
    "lanes": "lanes of a parallel loop run at once: which of the two stays is luck",
    "barriers": "an arrival, a wait or a phase too many or too few",
    "uninitialised": "clear or fill it first; a copy of a partial tile leaves the rest as it was",
    "unwritten": "a guard too strict, a grid too small, or a block that returns early?",
    "budget": "smaller tiles, or fewer stages",
    "overreads": "what is read there belongs to the next sequence and must be masked",
}


class Watch:
    """The sanitizers' view of one run of an entry."""

    def __init__(self, spec: Spec, problem: Problem, only: frozenset[str] | None = None) -> None:
        from tlmatrix.interpreter import DEFAULT_SANITIZERS

        self._spec = spec
        self._problem = problem
        options = spec.sanitizers
        self._wanted = (DEFAULT_SANITIZERS | {*options.also}) - {*options.without}
        if only is not None:
            self._wanted &= only
        # Of the problem that the entry is given, once it is.
        self._ownership = Ownership(spec, problem)
        self._reports: list[Report] = []

    @contextmanager
    def watching(self, problem: Problem) -> Iterator[None]:
        """Kernels called inside are watched; `problem` is the one that the entry is given."""
        self._ownership = Ownership(self._spec, problem)
        with self._interpreting(self._wanted - {"nonfinite"}) as self._reports:
            yield

    @contextmanager
    def _interpreting(self, sanitizers: frozenset[str]) -> Iterator[list[Report]]:
        from tlmatrix.interpreter import interpret

        with interpret(
            sanitize=sanitizers,
            on_report="keep",
            sequences=self._ownership.sequences,
            poison=MARKS,
        ) as run:
            yield run.reports

    @property
    def wanted(self) -> frozenset[str]:
        """The sanitizers that watch the run."""
        return self._wanted - {"nonfinite"}

    @contextmanager
    def watching_ranks(self, world: int) -> Iterator[None]:
        """Kernels of simulated ranks called inside are watched.

        Where there are several, their tensors are parts of the problem's: which rows belong to
        which sequence only the spec can say.
        """
        problem = self._problem
        if world > 1:
            problem = replace(problem, dims={}, inputs={}, outputs={})
        with self.watching(problem):
            yield

    @property
    def stops(self) -> bool:
        """Whether the kernels raise an error where they are not watched."""
        return any(report.sanitizer in _STOPPING for report in self._reports)

    def findings(
        self,
        results: Tensors,
        others: Sequence[Finding],
        execute: Callable[[Problem], Tensors],
    ) -> list[Finding]:
        """What was found, then `others`, the findings about values and guards of the same run.

        `results` are those of the run. Where values are not finite, `execute` is called once more
        to find the operation that made the first.
        """
        reports, explaining = self._sifted(results)
        if not others:
            reports = self._without_unused_rows(reports, results, execute)
        wrong = [finding for finding in others if finding.check in _WITH_VALUES]
        notes = [_told(report) for report in explaining] if wrong else []
        if any(_not_finite(finding) for finding in wrong):
            notes += [_told(report) for report in self._births(execute)]
        found, rest = _merged(list(self._found(reports, results)), others)
        if not notes:
            return [*found, *rest]
        first, *more = [*found, *rest]
        return [_noted(first, notes), *more]

    def _without_unused_rows(
        self, reports: list[Report], results: Tensors, execute: Callable[[Problem], Tensors]
    ) -> list[Report]:
        """The reports but those of rows that are read beyond their sequence and then masked."""
        names = {
            number: self._ownership.place(report, results)[0]
            for number, report in enumerate(reports)
            if report.sanitizer == "sequences" and report.message.startswith("read")
        }
        if not names or isinstance(execute, SeveralRanks):
            return reports
        used = {
            name: name is None or depends_on_other_sequences(name, self._problem, results, execute)
            for name in set(names.values())
        }
        return [
            report
            for number, report in enumerate(reports)
            if number not in names or used[names[number]]
        ]

    def _sifted(self, results: Tensors) -> tuple[list[Report], list[Report]]:
        """Faults, and what only explains: memory left unwritten that is no result."""
        faults, explaining = [], []
        left: dict[str, Report] = {}
        for report in self._reports:
            if report.sanitizer != "unwritten" or report.tensor is None:
                faults.append(report)
                continue
            name = self._ownership.result(report.tensor, results)
            if name is None:
                explaining.append(report)
            else:
                # The last kernel that had it in hand and left a part.
                left[name] = report
        for name, report in left.items():
            blank = poisoned(results[name])
            if blank is not None:
                place = tuple(int(i) for i in blank.nonzero()[0])
                spelled = ", ".join(str(i) for i in place)
                others = int(blank.sum()) - 1
                message = f"{name}[{spelled}] is never written, and {others} other elements"
                told = replace(report, index=place, message=message, tensor=results[name])
                faults.append(told)
        return faults, explaining

    def _births(self, execute: Callable[[Problem], Tensors]) -> list[Report]:
        """The operation that made the first value that is not finite, found in a run of its own."""
        if "nonfinite" not in self._wanted or isinstance(execute, SeveralRanks):
            return []
        with (
            guarded(self._problem) as (inside, _),
            self._interpreting(frozenset({"nonfinite"})) as reports,
        ):
            try:
                execute(inside)
            except Exception:  # noqa: BLE001 - the run that is explained did not raise
                return []
        return reports[:1]

    def _found(self, reports: Iterable[Report], results: Tensors) -> Iterator[Finding]:
        places: dict[tuple[str, str, int, str], list[Report]] = defaultdict(list)
        for report in reports:
            places[(report.kernel, report.file, report.line, report.buffer)].append(report)
        kinds: dict[tuple[str, str], list[list[Report]]] = defaultdict(list)
        for together in places.values():
            together.sort(key=lambda report: _RANK.index(report.sanitizer))
            kinds[(together[0].kernel, together[0].sanitizer)].append(together)
        for alike in kinds.values():
            yield self._finding(alike, results)

    def _finding(self, places: list[list[Report]], results: Tensors) -> Finding:
        (lead, *same), *more = places
        tensor, index = self._ownership.place(lead, results)
        title, *notes = lead.message.splitlines()
        if lead.count > 1:
            notes.append(f"and {lead.count - 1} more like it")
        notes += [_told(report, line=False) for report in same]
        notes += [f"also {_told(each[0])}" for each in more[:_MOST_PLACES]]
        if len(more) > _MOST_PLACES:
            notes.append(f"and at {len(more) - _MOST_PLACES} more lines")
        source = _source(lead)
        return Finding(
            check=_CHECK,
            title=f"{lead.sanitizer}: {title}",
            tensor=tensor,
            index=index,
            pattern=f"{lead.sanitizer} at {source}",
            hint=_hint(lead),
            detail="\n".join(notes) or None,
            source=source,
            kernel=lead.kernel,
            block=lead.block or None,
            against=_against(lead),
        )


def _merged(found: list[Finding], others: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Wrong values of a tensor that a finding is about are told with it."""
    rest = []
    told: Mapping[str, list[str]] = defaultdict(list)
    about = {finding.tensor for finding in found if finding.tensor is not None}
    for finding in others:
        if finding.check in _WITH_VALUES and finding.tensor in about:
            where = f", {finding.where}" if finding.where else ""
            told[str(finding.tensor)].append(f"it shows: {finding.title}{where}")
        else:
            rest.append(finding)
    merged = []
    for finding in found:
        # Told once, with the first finding about the tensor.
        notes = told.get(str(finding.tensor), [])
        merged.append(_noted(finding, notes))
        notes.clear()
    return merged, rest


def _noted(finding: Finding, notes: Sequence[str]) -> Finding:
    if not notes:
        return finding
    return replace(finding, detail="\n".join([*filter(None, [finding.detail]), *notes]))


def _not_finite(finding: Finding) -> bool:
    got = finding.got
    return got is not None and (got != got or abs(got) == float("inf"))  # noqa: PLR0124 - NaN


def _hint(report: Report) -> str | None:
    if report.sanitizer == "sequences":
        if report.message.startswith("read"):
            return (
                "the tile starts outside its sequence, and results depend on it: an offset or a "
                "bound of another one?"
            )
        return (
            "a full tile stored at the last rows of a sequence reaches into the next one: bound "
            "the store by the length"
        )
    if report.sanitizer == "races" and report.rank is not None:
        return (
            "order the two: a barrier of the ranks, an event between streams, or a flag released "
            "after the first and acquired before the second"
        )
    if report.sanitizer == "budget" and "shared memory" not in report.message:
        return None  # A layout, or tensor memory: its message says what is too much.
    return _HINTS.get(report.sanitizer)


def _told(report: Report, *, line: bool = True) -> str:
    """A report in one line."""
    kernel = f", in kernel {report.kernel}" if report.kernel else ""
    place = f" at {_source(report)}{kernel}" if line else ""
    against = f", against {_against(report)}" if report.other is not None else ""
    message = report.message.split("\n", 1)[0]
    return f"{report.sanitizer}: {message}{place}{against}"


def _source(report: Report) -> str:
    return f"{short_path(report.file)}:{report.line}" if report.file else "an unknown line"


def _against(report: Report) -> str | None:
    other = report.other
    if other is None:
        return None
    block = f" by block {other.block}" if other.block is not None else ""
    if other.who:
        block += f" of {other.who}" if block else f" by {other.who}"
    place = f" at {short_path(other.file)}:{other.line}" if other.file else ""
    return f"a {other.action}{block}{place}"
