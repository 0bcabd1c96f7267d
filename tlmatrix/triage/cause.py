"""The definition of "the same fault", for fuzzing and for the reports of runs.

Failures have a `Cause`, which is coarser than a finding: one wrong bound may affect the last tile
of a sequence in one case and a single row in another, and the worst gradient may be dk or dv. The
values of cases refine it. Fuzzing can run more cases, so it compares the values that the smallest
failing case needs (`known_fault`). A report can only read results, so it looks for values that
separate failing cases from passing ones (`tlmatrix.triage.groups`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tlmatrix.check.finding import KEEPS_STATE
from tlmatrix.dtypes import dtype_of
from tlmatrix.run.result import Status
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

COMPARING_CHECKS = frozenset(
    {"isolation", "determinism", "repeat", "relations", "agreement", "propagation"}
)
"""Checks that compare the numbers of several runs."""
NUMERIC_CHECKS = COMPARING_CHECKS | {"numeric", "gradients"}
"""Checks that compare numbers. One fault may fail several of them, with several patterns."""
VALUE_CHECKS = frozenset({"numeric", "gradients", "poison", "guards"})
"""Checks of the values that one run leaves in memory."""

_DTYPE = re.compile(r"\b(torch\.)?(bfloat|float|u?int)\d+(_?e\dm\d\w*)?\b")
_MAX_PER_CAUSE = 3
"""Faults of one cause that fuzzing separates by the values that their smallest cases need."""


class Cause(NamedTuple):
    """The properties that failures of one fault share.

    Attributes:
        check: the check that failed, or the status of the case.
        subject: the tensor, the kernel, or the message of an exception with 0 for numbers and
            `dtype` for dtypes.
        symptom: the kind of region of a tensor, of a sanitizer's report, or of another finding.
    """

    check: str
    subject: str
    symptom: str


class Fault(Protocol):
    """A fault that is known from an earlier failure."""

    @property
    def smallest(self) -> CaseResult:
        """The result of its smallest failing case."""

    @property
    def all_causes(self) -> Collection[Cause]:
        """The causes of its failing cases."""


def cause_of(result: CaseResult) -> Cause | None:
    """The cause of a failed result; None for any other."""
    if not result.failed:
        return None
    if not result.findings:
        return Cause(str(result.status), "", "")
    finding = result.findings[0]
    if result.status is not Status.FAILED:
        title = re.sub(r"\d+", "0", _DTYPE.sub("dtype", finding.title))
        return Cause(finding.check, title, "")
    if finding.check == "sanitizers":
        kind = finding.title.partition(":")[0]
        return Cause(finding.check, finding.kernel or "", kind)
    if finding.source is not None:  # a sanitizer's report that ended a later run
        kind = (finding.pattern or "").partition(" at ")[0]
        return Cause(finding.check, finding.kernel or "", kind)
    # Gradients of one kernel are wrong together, and the worst one changes with the values.
    subject = "" if finding.check == "gradients" else finding.tensor or ""
    return Cause(finding.check, subject, _symptom(finding))


def kind_of(result: CaseResult) -> tuple[Cause | None, str | None]:
    """The cause of a failed result and the pattern of its wrong numbers.

    A later call that is wrong counts as a first call that is, unless the entry keeps state: the
    values of either may be those that show the fault.
    """
    cause = cause_of(result)
    if not wrong_numbers(result):
        return cause, None
    assert cause is not None
    finding = result.findings[0]
    if finding.check == "repeat" and KEEPS_STATE not in (finding.detail or ""):
        cause = cause._replace(check="numeric")
    return cause, finding.pattern


def wrong_numbers(result: CaseResult) -> bool:
    """Whether a case failed a check that compares numbers, and by its numbers."""
    if result.status is not Status.FAILED:
        return False
    finding = result.findings[0]
    return finding.check in NUMERIC_CHECKS and finding.source is None


def lines_of(result: CaseResult) -> frozenset[str]:
    """`file:line` of every access that sanitizers report, on both sides of a race."""
    found = set()
    for finding in result.findings:
        if finding.source is not None:
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
    if finding.check not in NUMERIC_CHECKS | VALUE_CHECKS:
        return pattern
    return pattern if pattern in ("shape", "input changed", "first rows") else ""


def same_fault(one: CaseResult, two: CaseResult) -> bool:
    """Whether two smallest failing cases show one fault.

    They do if they are the same case, if sanitizers report the same line, if both crash or
    hang or lose the GPU in the same way, or if only their dtypes and lengths differ and the same
    elements are wrong.
    """
    if one.key == two.key:
        return True
    if one.status in (Status.CRASHED, Status.TIMEOUT) or _loses_gpu(one):
        return cause_of(one) == cause_of(two)
    return bool(lines_of(one) & lines_of(two)) or (
        wrong_numbers(one) and kind_of(one) == kind_of(two) and differ_by_dtype(one, two)
    )


def differ_by_dtype(one: CaseResult, two: CaseResult) -> bool:
    """Whether two cases have other dtypes, and otherwise the same values except numbers."""
    if one.path != two.path or one.values.keys() != two.values.keys():
        return False
    differing = [
        (value, two.values[axis])
        for axis, value in one.values.items()
        if canonical(value) != canonical(two.values[axis])
    ]
    dtypes = [pair for pair in differing if all(map(is_dtype, pair))]
    return bool(dtypes) and all(pair in dtypes or all(map(_is_numbers, pair)) for pair in differing)


def is_dtype(value: Value) -> bool:
    """Whether the value of an axis is the name of a dtype."""
    return isinstance(value, str) and dtype_of(value) is not None


def _is_numbers(value: Value) -> bool:
    return value is not None and not isinstance(value, bool | str)


def _loses_gpu(result: CaseResult) -> bool:
    """Whether a case left the GPU unusable, so that it cannot be shrunk in its process."""
    return any(
        finding.check == "launch" and "context is lost" in finding.title
        for finding in result.findings
    )


def known_fault(spec: Spec, case: Case, result: CaseResult, faults: Sequence[Fault]) -> int | None:
    """The index in `faults` of the fault that a failed case shows; None for a new fault.

    It is a fault with a line of the same sanitizer report, or one of the same cause if the case
    has all values that the smallest case of the fault needs.
    """
    lines = lines_of(result)
    for index, fault in enumerate(faults):
        if lines & lines_of(fault.smallest):
            return index
    cause, kind = cause_of(result), kind_of(result)
    alike = [
        index
        for index, fault in enumerate(faults)
        if cause in fault.all_causes or kind == kind_of(fault.smallest)
    ]
    if len(alike) >= _MAX_PER_CAUSE:
        return alike[0]
    return next((n for n in alike if _has_needed_values(spec, faults[n].smallest, case)), None)


def simplest_values(spec: Spec, axes: Collection[str]) -> dict[str, str]:
    """The simplest value of each of some axes, as canonical text: the first that the spec lists.

    The text is empty for an axis that the spec does not list, whose simplest form is absence.
    """
    return {axis: canonical(spec.axes[axis][0]) if spec.axes.get(axis) else "" for axis in axes}


def _has_needed_values(spec: Spec, smallest: CaseResult, case: Case) -> bool:
    """Whether a case has all values that the smallest case of a failure needs.

    These are the values other than the simplest of their axis, except lengths.
    """
    simplest = simplest_values(spec, smallest.values)
    for axis, value in smallest.values.items():
        text = canonical(value)
        if text == simplest[axis] or _is_length(spec, axis, case):
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
