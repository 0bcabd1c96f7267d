"""Renders a report: the templates, styles, scripts and data in one file."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from tlmatrix.report.html.faults import fault_page
from tlmatrix.report.html.tables import (
    all_rows,
    bench_rows,
    is_search,
    kernel_coverage,
    matrices,
    newest_results,
    pairs,
    payload,
    ratio_rows,
    run_rows,
    spec_rows,
)
from tlmatrix.report.tally import Tally
from tlmatrix.report.text import count
from tlmatrix.run.result import Status
from tlmatrix.triage.groups import group_failures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tlmatrix.report.html.tables import Row
    from tlmatrix.run.records import RunRecords
    from tlmatrix.spec.model.spec import Spec

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
