"""The checks of values: `numeric`, `gradients` and `poison`, of the results of the first call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.dependence import poisoned_row_hints
from tlmatrix.check.diagnose import diagnose, worst_of
from tlmatrix.check.memory import poison_mask
from tlmatrix.check.numeric import Deviation, deviations
from tlmatrix.check.rounding import biases, one_sided
from tlmatrix.check.running import run_guarded
from tlmatrix.unwinding import unwinds

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.running import CaseRun

_NAN_HINT = (
    "no input holds NaN: avoid 0/0 and inf - inf in the reference; if NaN is intended, return it "
    "from the entry too"
)


def check_values(run: CaseRun) -> list[Finding]:
    """Findings about results beyond their error bounds, or that depend on uninitialized memory."""
    if not run.problem.has_reference:
        return _unwritten(run) if "poison" in run.checks else []
    compared = {name: got for name, got in run.results.items() if run.checks_values(name)}
    wrong = (
        deviations(compared, run.bounds)
        or biases(compared, run.bounds)
        or one_sided(compared, run.bounds)
    )
    if not wrong:
        ratio = run.bounds.error_ratio() if run.on_error_ratio is not None else None
        if run.on_error_ratio is not None and ratio is not None:
            run.on_error_ratio(ratio)
        return []
    uninitialized = _depend_on_poison(run, wrong)
    rest = {name: each for name, each in wrong.items() if name not in uninitialized}
    hints = poisoned_row_hints(
        rest, run.bounds, lambda each: run_guarded(run.execute, each, poison=True)[0]
    )
    found = []
    for name, deviation in wrong.items():
        check = run.check_of(name)
        unwritten = poison_mask(deviation.got)
        if "poison" in run.checks and (unwritten is not None or name in uninitialized):
            check = "poison"
        elif check not in run.checks:
            continue
        finding = diagnose(check, name, deviation, run.bounds)
        finding = replace(finding, hint=hints.get(name, finding.hint))
        if (title := _nan_of_reference(run, name, deviation)) is not None:
            found.append(replace(finding, check="reference", title=title, hint=_NAN_HINT))
            continue
        if check == "poison" and unwritten is None:
            finding = replace(
                finding,
                hint="reads uninitialized memory: the result changes if that memory starts as "
                "zeros (is a workspace assumed to be zero?)",
            )
        found.append(finding)
    gradients = [finding for finding in found if finding.check == "gradients"]
    others = [finding for finding in found if finding.check != "gradients"]
    if others and gradients:
        # Wrong outputs make their gradients wrong, so one finding covers all gradients.
        return [*others, worst_of(gradients, "also wrong")]
    return found


def _unwritten(run: CaseRun) -> list[Finding]:
    """Findings about results that still hold poison; needs no reference."""
    found = []
    for name, got in run.results.items():
        mask = poison_mask(got)
        if mask is not None and bool(mask.any()):
            deviation = Deviation.of_elements(got, got, mask)
            finding = diagnose("poison", name, deviation, run.bounds)
            found.append(replace(finding, expected=None, got=None))
    return found


def _nan_of_reference(run: CaseRun, name: str, deviation: Deviation) -> str | None:
    """The title of a finding if only the reference has NaN, and no input does."""
    lacks = deviation.wrong & deviation.expected.isnan() & ~deviation.got.isnan()
    inputs = (each for each in run.problem.inputs.values() if each.is_floating_point())
    if not bool(lacks.any()) or any(bool(each.isnan().any()) for each in inputs):
        return None
    return (
        f"reference error: {name}: the reference gives NaN in {int(lacks.sum())} of "
        f"{lacks.numel()} elements where the entry gives numbers"
    )


def _depend_on_poison(run: CaseRun, wrong: dict[str, Deviation]) -> set[str]:
    """Results with NaN that change if fresh memory holds zeros instead of poison."""
    with_nan = {
        name: deviation.got
        for name, deviation in wrong.items()
        if bool((deviation.got.isnan() & ~deviation.expected.isnan()).any())
    }
    if not with_nan or "poison" not in run.checks:
        return set()
    try:
        again, _ = run_guarded(run.execute, run.problem, poison=False)
    except BaseException as error:
        if unwinds(error):
            raise
        return set()  # another run that does not end is no evidence
    return {
        name
        for name, got in with_nan.items()
        if name in again and bool((got.isnan() & ~again[name].isnan()).any())
    }
