"""The tables of a report, which are readable without scripts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tlmatrix.report.html.payload import axis_values
from tlmatrix.run.result import FAILURES, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tlmatrix.report.html.payload import Row
    from tlmatrix.run.records import RunRecords

_STATIC_VALUES = 24
"""Most values of an axis in a table without scripts."""


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
    found = []
    for number, run in enumerate(runs):
        counts = run.counts()
        cases = len(run.results)
        failed = sum(counts[status] for status in FAILURES)
        found.append(
            {
                "name": run.path.name,
                "started": run.header.started.replace("T", " ").removesuffix("+00:00"),
                "backend": ", ".join(sorted({r.backend for r in run.results if r.backend})),
                "cases": cases,
                "passed": counts[Status.PASSED],
                "failed": failed,
                "other": cases - counts[Status.PASSED] - failed,
                "replaced": cases - counted[number],
                "incomplete": run.incomplete,
            }
        )
    return found


def spec_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each spec: cases by status, seconds, the largest error ratio."""
    found = []
    for path, mine in _by_spec(rows).items():
        counts = Counter(row.result.status for row in mine)
        ratios = [row.ratio for row in mine if row.ratio is not None]
        failed = sum(counts[status] for status in FAILURES)
        found.append(
            {
                "spec": mine[0].result.spec,
                "path": path,
                "cases": len(mine),
                "passed": counts[Status.PASSED],
                "failed": failed,
                "known": counts[Status.KNOWN_BUG] + counts[Status.QUARANTINED],
                "skipped": counts[Status.SKIPPED],
                "seconds": sum(row.result.seconds for row in mine),
                "slowest": max(row.result.seconds for row in mine),
                "ratio": max(ratios, default=None),
                "faults": len({row.fault for row in mine if row.fault}),
            }
        )
    return sorted(found, key=lambda row: (-row["failed"], row["spec"]))


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
