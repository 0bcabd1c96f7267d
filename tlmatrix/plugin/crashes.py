"""Results of cases that have none of their own: their process ended, or pytest did not run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tlmatrix.check.finding import Finding
    from tlmatrix.plugin.settings import Settings
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult, SkipReason, Status

__all__ = ["lost_case", "unjudged_case"]


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
    from tlmatrix.check.finding import Finding
    from tlmatrix.run.records import RecordsError, read_records
    from tlmatrix.run.result import Status

    try:
        results = read_records(records.path).results
    except (OSError, RecordsError):
        results = ()
    for result in results:
        # A result without a key is only a record that the case began.
        if (result.path, result.case) == (path, case_id) and result.key:
            return result
    finding = Finding(
        check="crash",
        title="the process ended while this case was running",
        hint="a segmentation fault, os._exit, or out of memory; run the command below to "
        "reproduce it alone",
    )
    result = _result(path, case_id, Status.CRASHED, requested, seed, finding=finding)
    records.case(result)
    return result


def unjudged_case(
    records: RecordsWriter, path: str, case_id: str, report: pytest.TestReport, settings: Settings
) -> CaseResult:
    """Record a case that pytest did not run: skipped by a marker or hook, or an error of one."""
    from tlmatrix.check.finding import Finding
    from tlmatrix.run.result import SkipReason, Status

    requested, seed = settings.backend, settings.seed
    if report.skipped:
        longrepr = report.longrepr
        words = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        result = _result(
            path, case_id, Status.SKIPPED, requested, seed,
            reason=SkipReason.PYTEST, message=words.removeprefix("Skipped: "),
        )  # fmt: skip
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
        result = _result(path, case_id, Status.ERROR, requested, seed, finding=finding)
    records.case(result)
    return result


def _result(
    path: str,
    case_id: str,
    status: Status,
    requested: str,
    seed: int,
    *,
    finding: Finding | None = None,
    reason: SkipReason | None = None,
    message: str = "",
) -> CaseResult:
    from tlmatrix.matrix import find_case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.loader import load_spec

    spec = load_spec(path)
    case = find_case(spec, case_id)
    return CaseResult(
        spec=spec.name,
        path=path,
        case=case_id,
        key=case.key,
        values=case.values,
        origin=case.origin,
        status=status,
        reason=reason,
        message=message,
        findings=(finding,) if finding is not None else (),
        requested=requested,
        seed=seed,
    )
