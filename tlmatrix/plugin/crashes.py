"""What is on record of a case whose process ended while the case was running."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tlmatrix.run.result import CaseResult

__all__ = ["lost_case"]


def lost_case(results: Path, path: str, case_id: str, *, requested: str, seed: int) -> CaseResult:
    """The result of a case whose process is gone, from `results`, or else added there: crashed.

    The process itself may have recorded one before it ended (a timeout, a GPU fault). `requested`
    is the backend that the user named, `seed` that of the run.
    """
    from tlmatrix.run.records import RecordsWriter, read_records

    if results.exists():
        for result in read_records(results).results:
            # Without a key it is only known to have begun.
            if (result.path, result.case) == (path, case_id) and result.key:
                return result
    result = _crashed(path, case_id, requested, seed)
    writer = RecordsWriter(results)
    writer.case(result)
    writer.close()
    return result


def _crashed(path: str, case_id: str, requested: str, seed: int) -> CaseResult:
    from tlmatrix.check.finding import Finding
    from tlmatrix.matrix import find_case
    from tlmatrix.run.result import CaseResult, Status
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
        status=Status.CRASHED,
        findings=(
            Finding(
                check="crash",
                title="the process ended while this case was running",
                hint="a segmentation fault, os._exit, or the system out of memory; run the "
                "command below to see it alone",
            ),
        ),
        requested=requested,
        seed=seed,
    )
