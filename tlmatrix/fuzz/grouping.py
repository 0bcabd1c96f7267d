"""Which failures are one fault: a search tells each once, and goes on for others.

A cause is coarser than a finding. The same wrong bound is the last tile of every sequence here
and a row there, and the worst of its gradients is now dk, now dv; only the kind of place survives
that. Two faults with one cause are told apart by what the smallest case of the first one needs.
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
    from tlmatrix.spec.models import Spec

__all__ = ["Cause", "cause_of", "explained", "lines_of", "plain_values"]


class Cause(NamedTuple):
    """What failures of one fault share.

    Attributes:
        check: the check that failed, or how the case ended.
        about: the tensor; or the kernel; or the words of an exception, with 0 for numbers.
        look: where in a tensor it shows, or what a sanitizer calls it.
    """

    check: str
    about: str
    look: str


def cause_of(result: CaseResult) -> Cause | None:
    """The cause of a result that makes a run fail; None of any other."""
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
    # Gradients of one kernel are wrong together, and which is the worst changes with the values.
    about = "" if finding.check == "gradients" else finding.tensor or ""
    return Cause(finding.check, about, _look(finding))


def lines_of(result: CaseResult) -> frozenset[str]:
    """`file:line` of every access that sanitizers found at fault, on either side of a race."""
    found = set()
    for finding in result.findings:
        if finding.check == "sanitizers" and finding.source is not None:
            found.add(finding.source)
            found.add((finding.against or "").rpartition(" at ")[2])
    return frozenset(found - {""})


def _look(finding: Finding) -> str:
    pattern = finding.pattern or ""
    if "never written" in finding.title:
        return "never written"
    if "are NaN" in finding.title:
        return "NaN"
    if pattern.startswith("last"):
        return "tail"
    return pattern if pattern in ("shape", "input changed", "first rows") else ""


def plain_values(spec: Spec, case: Case) -> dict[str, str]:
    """For every axis of a case its plainest value, as canonical text: the first of the spec.

    An axis that the spec does not list is plainest where it is not given: its text is empty.
    """
    return {
        axis: canonical(spec.axes[axis][0]) if spec.axes.get(axis) else "" for axis in case.values
    }


def explained(spec: Spec, smallest: Case, case: Case) -> bool:
    """Whether a case has what the smallest case of a fault could not do without.

    That is every value that is not its axis's plainest, but for lengths: a fault needs some.
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
