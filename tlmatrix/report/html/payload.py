"""The cases of results files in columns, which the scripts of a report filter and draw."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tlmatrix.run.result import Status
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.run.records import RunRecords
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.values import Value
    from tlmatrix.triage.groups import Group

_LONGEST = 60
"""Characters of the label of a value."""


class Row:
    """A case of a report: its result, the number of its run, its fault, and labels of its values.

    `fault` counts from 1; 0 if the case did not fail. An invalid input has no labels: it is in no
    matrix.
    """

    __slots__ = ("fault", "labels", "ratio", "result", "run", "size")

    def __init__(self, result: CaseResult, run: int, fault: int) -> None:
        self.result = result
        self.run = run
        self.fault = fault
        values = {} if result.origin == "invalid" else result.values
        self.labels = {axis: _short(label(value)) for axis, value in values.items()}
        self.ratio = result.ratio
        self.size = size_of(result.values)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def size_of(values: Mapping[str, Value]) -> int:
    """The longest length among the values of a case; 0 if none is a number."""
    return max((number for value in values.values() for number in _numbers(value)), default=0)


def _numbers(value: Value) -> Iterable[int]:
    match value:
        case bool() | str() | float() | None:
            return
        case int():
            yield value
        case Mapping():
            for item in value.values():
                yield from _numbers(item)
        case _:
            for item in value:
                yield from _numbers(item)


def newest_results(runs: Sequence[RunRecords]) -> list[tuple[int, CaseResult]]:
    """The results of all runs, each with the number of its run, in the order of the files.

    Of a case that several runs judged on the same backend and GPU with the same seed, it is the
    result of the run that started last.
    """
    found = [(number, result) for number, run in enumerate(runs) for result in run.results]
    last: dict[tuple[object, ...], CaseResult] = {}
    for _, result in sorted(found, key=lambda each: runs[each[0]].header.started):
        last[_identity(result)] = result
    return [(number, result) for number, result in found if last[_identity(result)] is result]


def _identity(result: CaseResult) -> tuple[object, ...]:
    backend = result.backend or result.requested
    return result.path, result.case, backend, result.arch, result.seed


def all_rows(results: Sequence[tuple[int, CaseResult]], groups: Sequence[Group]) -> list[Row]:
    """The rows of results, each given with the number of its run."""
    faults = {
        id(result): number for number, group in enumerate(groups, 1) for result in group.results
    }
    return [Row(result, number, faults.get(id(result), 0)) for number, result in results]


def axis_values(rows: Iterable[Row]) -> dict[str, list[str]]:
    """The labels of the values of each axis that cases have, in natural order."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for axis, text in row.labels.items():
            found[axis].add(text)
    return {axis: sorted(labels, key=_natural) for axis, labels in sorted(found.items())}


def _natural(text: str) -> tuple[object, ...]:
    """A sort key: numbers by size, within text too."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part)


def payload(runs: Sequence[RunRecords], rows: Sequence[Row], bench: list[Any]) -> dict[str, Any]:
    """Plain data: columns of indices into lists of names."""
    axes = axis_values(rows)
    index = {axis: {text: at for at, text in enumerate(labels)} for axis, labels in axes.items()}
    paths = list(dict.fromkeys(row.result.path for row in rows))
    place = {path: at for at, path in enumerate(paths)}
    names = {row.result.path: row.result.spec for row in rows}
    statuses = [str(status) for status in Status]
    used: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        used[row.result.path].update(row.labels)
    return {
        "runs": [
            {"name": run.path.name, "search": is_search(run), "started": run.header.started}
            for run in runs
        ],
        "specs": [{"name": names[p], "path": p, "axes": sorted(used[p])} for p in paths],
        "statuses": statuses,
        "axes": axes,
        "bench": bench,
        "cases": {
            "run": [row.run for row in rows],
            "spec": [place[row.result.path] for row in rows],
            "id": [row.result.case for row in rows],
            "status": [statuses.index(row.result.status) for row in rows],
            "seconds": [round(row.result.seconds, 4) for row in rows],
            "ratio": [None if row.ratio is None else float(f"{row.ratio:.4g}") for row in rows],
            "size": [row.size for row in rows],
            "fault": [row.fault for row in rows],
            "note": {str(at): note for at, row in enumerate(rows) if (note := _note(row.result))},
            "values": {
                axis: [index[axis].get(row.labels.get(axis, ""), -1) for row in rows]
                for axis in axes
            },
        },
    }


def is_search(run: RunRecords) -> bool:
    """Whether the records are those of `tlmatrix fuzz`."""
    return bool(run.results) and all(result.origin == "fuzz" for result in run.results)


def _note(result: CaseResult) -> str:
    """Why a case did not pass."""
    if result.status is Status.PASSED:
        return ""
    if result.message:
        return result.message[:300]
    shown = result.smaller or result
    return f"{shown.findings[0].check}: {shown.findings[0].title}"[:300] if shown.findings else ""
