"""Reports as one HTML file: tables of cases, columns for the scripts, the page."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from tlmatrix.report.html.faults import fault_page
from tlmatrix.report.tally import Tally
from tlmatrix.report.text import count
from tlmatrix.run.result import Status
from tlmatrix.spec.values import label, numbers_in
from tlmatrix.triage.groups import group_failures
from tlmatrix.words import ellipsis

if TYPE_CHECKING:
    from tlmatrix.run.records import RunRecords
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value
    from tlmatrix.triage.groups import Group


_STATIC_VALUES = 24
"""Most values of an axis in a table without scripts."""
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
        self.labels = {axis: ellipsis(label(value), _LONGEST) for axis, value in values.items()}
        self.ratio = result.ratio
        self.size = size_of(result.values)


def size_of(values: Mapping[str, Value]) -> int:
    """The longest length among the values of a case; 0 if none is a whole number."""
    numbers = (number for value in values.values() for number in numbers_in(value))
    return max((number for number in numbers if isinstance(number, int)), default=0)


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


def is_search(run: RunRecords) -> bool:
    """Whether the records are those of `tlmatrix fuzz`."""
    return bool(run.results) and all(result.origin == "fuzz" for result in run.results)


# Tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """Cases of a spec by two axes: `cells[y][x]` has (cases, failed)."""

    spec: str
    path: str
    x: str
    y: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


def run_rows(runs: Sequence[RunRecords], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each run: its cases by status, and how many have a newer result in another run."""
    counted = Counter(row.run for row in rows)
    return [
        {
            "name": run.path.name,
            "started": run.header.started.replace("T", " ").removesuffix("+00:00"),
            "backend": ", ".join(sorted({r.backend for r in run.results if r.backend})),
            "tally": Tally(run.results),
            "replaced": len(run.results) - counted[number],
            "incomplete": run.incomplete,
        }
        for number, run in enumerate(runs)
    ]


def spec_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each spec: cases by status, the largest error ratio; the most failures first."""
    found = [
        {
            "spec": mine[0].result.spec,
            "path": path,
            "tally": Tally(row.result for row in mine),
            "ratio": max((row.ratio for row in mine if row.ratio is not None), default=None),
        }
        for path, mine in _by_spec(rows).items()
    ]
    return sorted(found, key=lambda row: (-row["tally"].failed, row["spec"]))


def _by_spec(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.result.path].append(row)
    return found


def matrices(rows: Sequence[Row]) -> list[Matrix]:
    """A matrix for each spec, over the two axes with the most information about failures."""
    return [
        matrix
        for path, mine in _by_spec(rows).items()
        if (matrix := _matrix(path, [row for row in mine if row.labels])) is not None
    ]


def _matrix(path: str, rows: Sequence[Row]) -> Matrix | None:
    axes = {
        axis: labels
        for axis, labels in axis_values(rows).items()
        if 1 < len(labels) <= _STATIC_VALUES
    }
    # Axes that nearly all cases have, if there are two.
    having = {axis: sum(axis in row.labels for row in rows) for axis in axes}
    common = {axis: axes[axis] for axis in axes if having[axis] >= 0.9 * len(rows)}
    axes = common if len(common) > 1 else axes
    if len(axes) < 2:
        return None
    gains = {axis: _information(rows, axis) for axis in axes}
    y, x = sorted(axes, key=lambda axis: (-round(gains[axis], 9), -len(axes[axis]), axis))[:2]
    if len(axes[x]) > len(axes[y]):
        x, y = y, x
    counts: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if x in row.labels and y in row.labels:
            key = (row.labels[y], row.labels[x])
            counts[key] += 1
            failed[key] += row.result.failed
    return Matrix(
        rows[0].result.spec,
        path,
        x,
        y,
        tuple(axes[x]),
        tuple(
            (one, tuple((counts[(one, other)], failed[(one, other)]) for other in axes[x]))
            for one in axes[y]
        ),
    )


def _information(rows: Sequence[Row], axis: str) -> float:
    """The information of an axis about whether a case fails, in bits, of cases that have it."""
    totals: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for row in rows:
        if axis in row.labels:
            totals[row.labels[axis]] += 1
            failed[row.labels[axis]] += row.result.failed
    whole = _entropy(failed.total(), totals.total()) * totals.total()
    parts = sum(_entropy(failed[each], totals[each]) * totals[each] for each in totals)
    return (whole - parts) / len(rows)


def _entropy(some: int, total: int) -> float:
    if some in (0, total):
        return 0.0
    part = some / total
    return -part * math.log2(part) - (1 - part) * math.log2(1 - part)


def ratio_rows(rows: Sequence[Row]) -> Iterator[tuple[str, str, int, list[float]]]:
    """(what, value, cases, quartiles and maximum) of error ratios, by dtype and by length."""
    judged = [row for row in rows if row.ratio is not None]
    for what in ("dtype", "longest length"):
        groups: dict[str, list[float]] = defaultdict(list)
        for row in judged:
            name = row.labels.get("dtype", "-") if what == "dtype" else _bucket(row.size)
            groups[name].append(row.ratio or 0.0)
        for name in sorted(groups, key=lambda text: (len(text), text)):
            numbers = sorted(groups[name])
            quartiles = [numbers[int(part * (len(numbers) - 1))] for part in (0.25, 0.5, 0.75, 1)]
            yield what, name, len(numbers), quartiles


def _bucket(size: int) -> str:
    """The range between powers of two around a length: `65-128`."""
    if size < 2:
        return str(size)
    high = 1 << (size - 1).bit_length()
    return f"{high // 2 + 1}-{high}"


def pairs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Of each spec its axes with the cases of each value, and the pairs of values that occur."""
    found = []
    for path, mine in _by_spec(row for row in rows if row.labels).items():
        axes = {axis: labels for axis, labels in axis_values(mine).items() if len(labels) > 1}
        if not axes:
            continue
        counts = {axis: Counter(row.labels.get(axis, "") for row in mine) for axis in axes}
        table = []
        for one, other in combinations(axes, 2):
            seen = {
                (row.labels[one], row.labels[other])
                for row in mine
                if one in row.labels and other in row.labels
            }
            table.append((one, other, len(seen), len(axes[one]) * len(axes[other])))
        found.append(
            {
                "spec": mine[0].result.spec,
                "path": path,
                "axes": [
                    (axis, [(text, counts[axis][text]) for text in labels[:40]], len(labels))
                    for axis, labels in axes.items()
                ],
                "pairs": sorted(table, key=lambda row: row[2] / row[3]),
                "seen": sum(row[2] for row in table),
                "possible": sum(row[3] for row in table),
            }
        )
    return found


def kernel_coverage(coverage: Any) -> list[tuple[str, int, int, int]]:  # noqa: ANN401 - imported by its commands alone
    """(file, lines that ran, lines, gaps) of each kernel file."""
    found = []
    for file in coverage.files:
        mine = coverage.of(file)
        ran = sum(1 for hits in mine.lines.values() if hits)
        found.append((file, ran, len(mine.lines), len(mine.gaps())))
    return found


def bench_rows(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each implementation of each pass of a file of `tlmatrix bench`."""
    gpu = str(data.get("hardware", {}).get("gpu", ""))
    for case in data["cases"]:
        for name, times in case["passes"].items():
            for implementation, found in times["milliseconds"].items():
                yield {
                    "spec": case["spec"],
                    "case": case["case"],
                    "pass": name,
                    "name": implementation,
                    "gpu": gpu,
                    "flops": times.get("flops", 0),
                    **{key: found[key] for key in ("median", "low", "high")},
                }


# For the scripts -----------------------------------------------------------------------------


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


def _note(result: CaseResult) -> str:
    """Why a case did not pass."""
    return "" if result.status is Status.PASSED else (result.message or result.headline)[:300]


# The templates, styles, scripts and data in one file ----------------------------------------------


_FAULTS = 100
"""Most faults with a page."""
_OVERVIEW_FAULTS = 10
"""Faults in the overview; all are in the section of faults."""
_STATIC_CASES = 200
"""Most failing cases in the table that needs no scripts."""
_SLOWEST = 25
_SCRIPTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js", "report.js")


def render(
    runs: Sequence[RunRecords],
    bench: Sequence[Mapping[str, Any]] = (),
    proven: Sequence[str] = (),
) -> str:
    """The report of runs, searches and benchmarks (JSON of `tlmatrix bench`) as HTML.

    `proven` are lines about what was proven of kernels.

    The file needs no network. Without scripts it has every table, the faults and their pictures.
    """
    results = newest_results(runs)
    groups = group_failures(result for _, result in results)
    rows = all_rows(results, groups)
    folder_of = {id(r): Path(run.header.folder) for run in runs for r in run.results}
    specs: dict[Path, Spec | None] = {}
    faults = [
        fault_page(number, group, folder_of[id(group.example)], specs)
        for number, group in enumerate(groups[:_FAULTS], 1)
    ]
    tally = Tally(row.result for row in rows)
    times = [row for data in bench for row in bench_rows(data)]
    failing = [row for row in rows if row.result.failed]
    judged = [row for row in rows if row.result.seconds > 0]
    return rendered(
        "report.html.j2",
        runs=runs,
        run_rows=run_rows(runs, rows),
        tally=tally,
        statuses=[status for status in Status if tally.counts[status]],
        total=len(rows),
        failed=len(failing),
        specs=spec_rows(rows),
        faults=faults,
        more_faults=len(groups) - len(faults),
        overview_faults=_OVERVIEW_FAULTS,
        matrices=matrices(rows),
        failing=failing[:_STATIC_CASES],
        ratios=list(ratio_rows(rows)),
        pairs=pairs(rows),
        kernels=_kernels(runs),
        proven=proven,
        slowest=sorted(judged, key=lambda row: -row.result.seconds)[:_SLOWEST],
        searched=_searched(runs, rows),
        bench=times,
        scripts=[Markup(_text(name)) for name in _SCRIPTS],  # noqa: S704 - likewise
        data=Markup(_json(payload(runs, rows, times))),  # noqa: S704 - escaped
    )


def rendered(template: str, **values: Any) -> str:  # noqa: ANN401 - what the template reads
    """A page of this package's templates, with its style, in one file."""
    environment = Environment(
        loader=PackageLoader("tlmatrix.report.html"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["count"] = count
    environment.filters["number"] = _number
    environment.filters["ratio"] = lambda value: "-" if value is None else f"{value:.3g}"
    style = Markup(_text("report.css"))  # noqa: S704 - a file of this package
    return environment.get_template(template).render(style=style, **values)


def _text(name: str) -> str:
    return (files("tlmatrix.report.html") / name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON for a script element: without `<`, so that no text of a case ends the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, default=str)
    return text.replace("<", "\\u003c")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _kernels(runs: Iterable[RunRecords]) -> list[tuple[str, int, int, int]]:
    covered = [coverage for run in runs if (coverage := run.coverage())]
    if not covered:
        return []
    return kernel_coverage(type(covered[0]).merged(covered))


def _searched(runs: Sequence[RunRecords], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Of each search its examples, and when each fault appeared first."""
    found = []
    for number, run in enumerate(runs):
        if not is_search(run):
            continue
        mine = [row for row in rows if row.run == number]
        first: dict[int, tuple[int, float]] = {}
        seconds = 0.0
        for at, row in enumerate(mine, 1):
            seconds += row.result.seconds
            if row.fault:
                first.setdefault(row.fault, (at, seconds))
        found.append(
            {
                "name": run.path.name,
                "examples": len(run.results),
                "seconds": seconds,
                "specs": len({row.result.path for row in mine}),
                "faults": [(fault, *when) for fault, when in first.items()],
            }
        )
    return found
