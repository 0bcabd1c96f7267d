"""Deduplicates failures by cause, so that a search reports each fault once.

A cause is coarser than a finding: one wrong bound may affect the last tile of a sequence in one
case and a single row in another, and the worst gradient may be dk or dv. Two failures with the same
cause count as one fault if the later case has all values that the first one's smallest case needs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tlmatrix.run.result import Status
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Spec

__all__ = ["Cause", "cause_of", "explained", "lines_of", "plain_values"]


class Cause(NamedTuple):
    """The properties that failures of one fault share.

    Attributes:
        check: the check that failed, or the status of the case.
        subject: the tensor, the kernel, or the message of an exception with 0 for numbers.
        symptom: the kind of region of a tensor, or the kind of a sanitizer's report.
    """

    check: str
    subject: str
    symptom: str


def cause_of(result: CaseResult) -> Cause | None:
    """The cause of a failed result; None for any other."""
    if not result.failed:
        return None
    if not result.findings:
        return Cause(str(result.status), "", "")
    finding = result.findings[0]
    if result.status is not Status.FAILED:
        return Cause(finding.check, re.sub(r"\d+", "0", finding.title), "")
    if finding.check == "sanitizers":
        kind = finding.title.partition(":")[0]
        return Cause(finding.check, finding.kernel or "", kind)
    # Gradients of one kernel are wrong together, and the worst one changes with the values.
    subject = "" if finding.check == "gradients" else finding.tensor or ""
    return Cause(finding.check, subject, _symptom(finding))


def lines_of(result: CaseResult) -> frozenset[str]:
    """`file:line` of every access that sanitizers reported, on both sides of a race."""
    found = set()
    for finding in result.findings:
        if finding.check == "sanitizers" and finding.source is not None:
            found.add(finding.source)
            found.add((finding.against or "").rpartition(" at ")[2])
    return frozenset(found - {""})


def _symptom(finding: Finding) -> str:
    pattern = finding.pattern or ""
    if "never written" in finding.title:
        return "never written"
    if "are NaN" in finding.title:
        return "NaN"
    if pattern.startswith("last"):
        return "tail"
    return pattern if pattern in ("shape", "input changed", "first rows") else ""


def plain_values(spec: Spec, case: Case) -> dict[str, str]:
    """The simplest value of every axis of a case, as canonical text: the first that the spec lists.

    The text is empty for an axis that the spec does not list, whose simplest form is absence.
    """
    return {
        axis: canonical(spec.axes[axis][0]) if spec.axes.get(axis) else "" for axis in case.values
    }


def explained(spec: Spec, smallest: Case, case: Case) -> bool:
    """Whether a case has all values that the smallest case of a failure needs.

    These are the values other than the simplest of their axis, except lengths.
    """
    plain = plain_values(spec, smallest)
    for axis, value in smallest.values.items():
        text = canonical(value)
        if text == plain[axis] or _is_length(spec, axis, case):
            continue
        if axis not in case.values or canonical(case.values[axis]) != text:
            return False
    return True


def _is_length(spec: Spec, axis: str, case: Case) -> bool:
    """Whether values of an axis are lengths: lists, or numbers that the spec does not list."""
    value = case.values.get(axis)
    if isinstance(value, bool | str | float) or value is None:
        return False
    if not isinstance(value, int):
        return True
    return canonical(value) not in map(canonical, spec.axes.get(axis, ()))
