"""Results of cases that have none of their own: their process ended, or pytest did not run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.options.table import BACKEND, SEED

if TYPE_CHECKING:
    import pytest

    from tlmatrix.plugin.settings import Settings
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult, Status


def lost_case(
    records: RecordsWriter, path: str, case_id: str, *, requested: str, seed: int
) -> CaseResult:
    """The result of a case whose process ended: the recorded one, or else a new record `crashed`.

    The process may have recorded a timeout or a GPU fault before it ended.

    Args:
        records: the results file.
        path: the spec as the user gave it.
        case_id: the id of the case.
        requested: the backend that the user selected.
        seed: the seed of the run.
    """
    from tlmatrix.run.records import RecordsError, read_records
    from tlmatrix.run.result import Status, crash_finding

    try:
        results = read_records(records.path).results
    except (OSError, RecordsError):
        results = ()
    for result in results:
        # A result without a key is only a record that the case began.
        if (result.path, result.case) == (path, case_id) and result.key:
            return result
    found = (crash_finding(),)
    result = _result(path, case_id, Status.CRASHED, findings=found, requested=requested, seed=seed)
    records.case(result)
    return result


def unjudged_case(
    records: RecordsWriter, path: str, case_id: str, report: pytest.TestReport, settings: Settings
) -> CaseResult:
    """Record a case that pytest did not run: skipped by a marker or hook, or an error of one."""
    from tlmatrix.check.finding import Finding
    from tlmatrix.run.result import SkipReason, Status

    run = {"requested": settings.options[BACKEND], "seed": settings.options[SEED]}
    if report.skipped:
        longrepr = report.longrepr
        words = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        message = words.removeprefix("Skipped: ")
        result = _result(
            path, case_id, Status.SKIPPED, reason=SkipReason.PYTEST, message=message, **run
        )
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        words = crash.message if crash is not None else report.longreprtext
        last = (words.strip().splitlines() or [""])[0]
        finding = Finding(
            check="internal",
            title=f"pytest could not run the case, in its {report.when}: {last}",
            hint="an error of a fixture or plugin, or of tlmatrix itself",
            detail=report.longreprtext,
            pattern=last,
        )
        result = _result(path, case_id, Status.ERROR, findings=(finding,), **run)
    records.case(result)
    return result


def _result(path: str, case_id: str, status: Status, **facts: Any) -> CaseResult:  # noqa: ANN401 - fields
    from tlmatrix.matrix import find_case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.loader import load_spec

    return CaseResult.of(find_case(load_spec(path), case_id), path, status, **facts)
