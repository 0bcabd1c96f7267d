"""What the results of cases tell of a draft: what is refused, and which guess is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.check.registry import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.draft.text import Draft
    from tlmatrix.run.result import CaseResult

NOT_REFUSED = "is not refused, and is wrong"
NO_REFERENCE = "is no reference"
_LEFT_OUT = (
    "only the recorded sizes",
    "without gradients",
    "without sanitizers",
    "does not judge",
    "drawn as recorded",
)
RETURNED = re.compile(r"returned (\d+) (tensors|results)")
OTHER_RESULTS = re.compile(rf"{RETURNED.pattern}|has shape ")
_OTHER_DTYPE = re.compile(r" is \w+, expected \w+(,|$)")
_REFUSALS = ("entry", "reference", "problem", "spec")
"""Checks of what is no result."""
VALUES = ("numeric", "gradients", *_REFUSALS)
"""Checks that tell whether a reference agrees."""


@dataclass
class Trial:
    """What trying a draft gave.

    Attributes:
        draft: the draft as narrowed; its spec is in the file.
        results: of the cases of its last run.
        lines: what to print.
        error: why the spec could not run at all.
    """

    draft: Draft
    results: list[CaseResult] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def wrong(self) -> str:
        """The first line about values left out as wrong though nothing refuses them, or ""."""
        return next((line.strip() for line in self.lines if NOT_REFUSED in line), "")

    @property
    def refused(self) -> str:
        """The line that says why the reference that was found is none; or ""."""
        return next((line.strip() for line in self.lines if NO_REFERENCE in line), "")

    @property
    def left_out(self) -> str:
        """The line that says what is not judged: sizes, gradients, buffers, accesses; or ""."""
        return next((line.strip() for line in self.lines if line.strip().startswith(_LEFT_OUT)), "")


def passes(result: CaseResult) -> bool:
    """Whether a case has no finding."""
    return str(result.status) == "passed"


def is_taken(result: CaseResult) -> bool:
    """Whether the code under test and the reference take a case, if only to disagree."""
    judged = str(result.status) in ("passed", "failed")
    return judged and not refusal(result) and not _is_of_other_shape(result)


def agrees(result: CaseResult) -> bool:
    """Whether the reference has the values of the code under test, whatever else is found."""
    judged = str(result.status) in ("passed", "failed")
    return judged and not any(e.check in VALUES for e in result.findings)


def raised(result: CaseResult, check: str, words: re.Pattern[str]) -> bool:
    """Whether the first finding is of a check, and has these words."""
    firsts = result.findings[:1]
    return any(each.check == check and words.search(each.title) for each in firsts)


def of_zeros(results: Sequence[CaseResult]) -> bool:
    """Whether all cases are ones with zeros, or have results that are not numbers."""
    return all(
        str(each.values.get("values")) == "zero_rows"
        or any("NaN" in finding.title for finding in each.findings[:1])
        for each in results
    )


def relax(draft: Draft, results: Sequence[CaseResult]) -> tuple[Draft, list[str]]:
    """The draft without what right code need not do.

    That is to add in one order, and to keep values that are not finite from what they do not touch.
    """
    firsts = [finding for result in results for finding in result.findings[:1]]
    unordered = [finding.title for finding in firsts if finding.title.startswith("atomics: ")]
    if unordered and not draft.bounded:
        return replace(draft, bounded=True), [f"  determinism: bounded, as {unordered[0]}"]
    # Many right kernels multiply what a mask hides by 0, which a NaN survives.
    spread = [finding.title for finding in firsts if finding.check == "propagation"]
    if spread and "propagation" not in draft.without:
        without = (*draft.without, "propagation")
        return replace(draft, without=without), [f"  without propagation, as {spread[0]}"]
    return draft, []


def ranges_line(draft: Draft, result: CaseResult, *, integer: bool = False) -> str:
    """The line that says in which ranges inputs are, as another case fails."""
    ranges = draft.ranges_of(integer=integer)
    words = ", ".join(f"{n} from {a} to {b}" for n, (a, b) in ranges.items())
    why = next((each.title for each in result.findings), result.message)
    return f"  drawn as recorded: {words}: {why}"


def why_refused(draft: Draft, result: CaseResult, base: CaseResult | None = None) -> str:
    """Why a case is not taken; sizes that it shares with a case that passes are not the reason."""
    if guess := wrong_guess(draft, result):
        return guess
    steps = draft.multiples
    if base is not None:
        pairs = ((result.values.get(name), base.values.get(name)) for name in steps)
        steps = {n: each for (n, each), (a, b) in zip(steps.items(), pairs, strict=True) if a != b}
    return refusal(result) or _wrong_outside(result, steps)


def wrong_guess(draft: Draft, result: CaseResult) -> str:
    """What a draft without a reference says wrongly of results or calls; "" if nothing."""
    finding = next(iter(result.findings), None)
    if draft.complete or finding is None or broken(finding):
        return ""
    refused = finding.check in _REFUSALS or OTHER_RESULTS.search(finding.title)
    return finding.title if refused else ""


def worst(reasons: Iterable[str]) -> str:
    """Of several reasons one about wrong values, which nothing tells the caller; "" of none."""

    def rank(why: str) -> tuple[bool, ...]:
        return (NOT_REFUSED in why, "numeric" in why, bool(why))

    return max(reasons, key=rank, default="")


def broken(finding: Finding) -> bool:
    """Whether the code under test has a name that is not defined, whatever it is called with."""
    return finding.check == "entry" and finding.pattern in ("NameError", "UnboundLocalError")


def refusal(result: CaseResult) -> str:
    """Why the code under test, the reference or the draft does not take a case; "" if they do."""
    for finding in result.findings:
        if finding.check in _REFUSALS and finding.pattern and not broken(finding):
            return finding.title
        if finding.check == "numeric" and _OTHER_DTYPE.search(finding.title):
            return finding.title  # the draft has the dtype of one call
        if finding.title.startswith("budget: "):
            return finding.title  # a GPU refuses the launch
    return ""


def _is_of_other_shape(result: CaseResult) -> bool:
    return any(OTHER_RESULTS.search(finding.title) for finding in result.findings[:1])


def _wrong_outside(result: CaseResult, multiples: Mapping[str, int]) -> str:
    """What is wrong with a case whose sizes are not like any recorded one; "" if it passed.

    Of results of other shapes whatever the sizes. Not what further calls show, which the seed of a
    case selects.
    """
    steps = dict.fromkeys(result.values, 0) if _is_of_other_shape(result) else multiples
    outside = {
        name: result.values[name]
        for name, step in steps.items()
        if type(result.values.get(name)) is int and (not step or result.values[name] % step)  # type: ignore[operator]
    }
    found = [finding for finding in result.findings if finding.check not in CHECKS]
    if not outside or not result.failed or not found:
        return ""
    sizes = ", ".join(f"{name}={value}" for name, value in outside.items())
    finding = next((each for each in found if each.check == "numeric"), found[0])
    return f"{sizes} {NOT_REFUSED}: {finding.check}: {finding.title}"


def sizes_in(result: CaseResult) -> dict[str, Any]:
    """The values of a case that are numbers or lengths of sequences."""
    return {name: each for name, each in result.values.items() if type(each) in (int, list)}
