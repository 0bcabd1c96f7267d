"""Results of cases whose process ended while they were running."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tlmatrix.run.result import CaseResult

__all__ = ["lost_case"]


def lost_case(results: Path, path: str, case_id: str, *, asked: str, seed: int) -> CaseResult:
    """The result of a case whose process ended: the recorded one, or else a new record `crashed`.

    The process may have recorded a timeout or a GPU fault before it ended.

    Args:
        results: the results file.
        path: the spec as the user gave it.
        case_id: the id of the case.
        asked: the backend that the user selected.
        seed: the seed of the run.
    """
    from tlmatrix.run.records import RecordsWriter, read_records

    if results.exists():
        for result in read_records(results).results:
            # A result without a key is only a record that the case began.
            if (result.path, result.case) == (path, case_id) and result.key:
                return result
    result = _crashed(path, case_id, asked, seed)
    writer = RecordsWriter(results)
    writer.case(result)
    writer.close()
    return result


def _crashed(path: str, case_id: str, asked: str, seed: int) -> CaseResult:
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
                hint="a segmentation fault, os._exit, or out of memory; run the command below to "
                "reproduce it alone",
            ),
        ),
        asked=asked,
        seed=seed,
    )
