"""Runs all checks of a case, the most informative first.

First comes one call with guards, poison and sanitizers, compared with the reference; then the
checks of `tlmatrix.check.registry`, which mostly call the entry again. Checks that would only
repeat a finding are left out: after wrong values, relations, repeated calls and agreement fail for
the same reason, while isolation and poison may show the cause.

A problem without a reference takes the results of the first call for it: their values are not
checked, and the error bounds of relations follow from the size of these results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.dependence import poisoned_row_hints
from tlmatrix.check.diagnose import diagnose, merge_by_cause, merge_raised, worst_of
from tlmatrix.check.finding import NOT_RUN, Finding
from tlmatrix.check.memory import poison_mask
from tlmatrix.check.numeric import Deviation, deviations
from tlmatrix.check.registry import CHECKS, Reruns, is_selected, rotation_order
from tlmatrix.check.rounding import biases, one_sided, shared
from tlmatrix.check.running import CaseRun, Results, run_guarded
from tlmatrix.tracebacks import unwinds
from tlmatrix.words import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tlmatrix.check.registry import Check
    from tlmatrix.matrix.listed_cases import Case
    from tlmatrix.problem.model import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec


_NAN_HINT = (
    "no input holds NaN: avoid 0/0 and inf - inf in the reference; if NaN is intended, return it "
    "from the entry too"
)


def check_values(run: CaseRun) -> list[Finding]:
    """Findings about results beyond their error bounds, or that depend on uninitialized memory."""
    if not run.problem.has_reference:
        return _unwritten(run) if "poison" in run.checks else []
    compared = {name: got for name, got in run.results.items() if run.checks_values(name)}

    def deviating(results: Tensors) -> dict[str, Deviation]:
        return (
            deviations(results, run.bounds)
            or biases(results, run.bounds)
            or one_sided(results, run.bounds)
            or shared(results, run.bounds)
        )

    wrong = deviating(compared)
    if run.is_rounded_factor(
        run.problem,
        {name: compared[name] for name in wrong},
        lambda again: deviating({name: again[name] for name in compared}),
    ):
        wrong = {}
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


def judge(
    spec: Spec,
    case: Case,
    problem: Problem,
    execute: Callable[[Problem], Tensors],
    *,
    checks: Collection[str],
    arch: str,
    deterministic: bool,
    reruns: Reruns = "all",
    on_check: Callable[[str], object] = str,
    on_error_ratio: Callable[[float], None] | None = None,
    keep_going: bool = False,
    masked: bool = False,
    keep_compared: bool = False,
) -> list[Finding]:
    """Run the checks of a case and return the findings.

    Args:
        spec: the spec.
        case: the case; its seed selects checks in rotation.
        problem: its inputs and reference.
        execute: calls the entry and returns outputs and gradients by name.
        checks: names of the checks to run.
        arch: selects tolerances.
        deterministic: whether equal calls must give equal bits.
        reruns: which of the checks that run the entry again to run.
        on_check: called with `determinism` and the name of each relation before it runs.
        on_error_ratio: called with the error ratio (`ReferenceBounds.error_ratio`) if all values
            are within their error bounds.
        keep_going: also run checks that probably fail for the same reason as an earlier finding.
        masked: run the checks that an earlier finding stopped as if it did not exist: accesses
            outside are skipped, and relations compare with the results of the first run.
        keep_compared: whether findings keep the tensors that they compared.

    Raises:
        Exception: what `execute` raised in the first run, unless a sanitizer has a report; later
            runs that raise are findings.
    """
    run = CaseRun(
        spec, case, problem, execute, frozenset(checks), arch, deterministic, on_check,
        on_error_ratio,
    )  # fmt: skip
    found = _masked_findings(run) if masked else _findings(run, reruns, keep_going=keep_going)
    return found if keep_compared else [replace(finding, compared=None) for finding in found]


def _findings(run: CaseRun, reruns: Reruns, *, keep_going: bool) -> list[Finding]:
    later = [check for check in CHECKS.values() if check.name in run.checks]
    stopped = f"{NOT_RUN}{listed(check.name for check in later)}: " if later else "stopped: "
    try:
        results, found = run.first_call()
    except BaseException as error:
        if unwinds(error):
            raise
        reported = run.with_reports({}, [])
        if not reported:
            raise
        return merge_by_cause(_with_detail(reported, f"the run ended: {_first_line(error)}"))
    unusable = run.unusable(results)
    if unusable:
        note = f"{stopped}a result cannot be compared"
        return merge_by_cause(_with_detail(run.with_reports(results, found + unusable), note))
    if not run.problem.has_reference:
        run.use_as_reference(results)
    wrong = check_values(run)
    copies = []
    if isinstance(results, Results):
        copies = results.inconsistencies(run.bounds, exact=run.deterministic)
    found = run.with_reports(results, found + copies + wrong)
    if run.sanitizers is not None and run.sanitizers.fatal:
        note = f"{stopped}without sanitizers, the kernel stops at this access"
        return merge_by_cause(_with_detail(found, note))
    # Guarded calls have copies of the inputs, so that none starts from a changed input.
    run.misused_memory = any(finding.check in ("guards", "poison") for finding in found)
    useful = [check for check in later if not wrong or check.useful(run, keep_going=keep_going)]
    if reruns == "rotate":
        found += _one_in_rotation(run, useful)
        asked = later
    else:
        asked = [check for check in later if is_selected(check.name, reruns)]
        found += _all(run, [check for check in useful if check in asked])
    found = merge_raised(found)
    known = {finding.pattern for finding in found}
    found += [finding for finding in run.races if finding.pattern not in known]
    return merge_by_cause(_with_skipped(run, found, asked, useful, keep_going=keep_going))


def _masked_findings(run: CaseRun) -> list[Finding]:
    """The findings of later checks, as if the first call had neither findings nor reports."""
    results, found = run.first_call()
    unusable = run.unusable(results)
    run.misused_memory = True
    run.masks_accesses = run.sanitizers is not None and bool(run.with_reports(results, []))
    relations = not unusable and bool(run.results)
    if relations:
        run.use_as_reference(results)
    # The bound of wrong sums in any order is not known. A second call and other variants have
    # values of their own to be compared with.
    for stage in ("before", "after") if run.deterministic else ():
        checks = [c for c in CHECKS.values() if c.name in run.checks and c.masked == stage]
        more = _all(run, checks if relations or stage == "before" else [])
        if more:
            return merge_by_cause(found + more)
    return merge_by_cause(found)


def _all(run: CaseRun, checks: Sequence[Check]) -> list[Finding]:
    """The findings of these checks, in their order."""
    return [finding for check in checks for finding in check.findings(run)]


def _one_in_rotation(run: CaseRun, checks: Sequence[Check]) -> list[Finding]:
    """The findings of the first of these checks, in the case's order, that applies."""
    for name in rotation_order([check.name for check in checks], run.case.seed):
        found = CHECKS[name].rotated(run)
        if found is not None:
            return found
    return []


def _with_skipped(
    run: CaseRun,
    found: list[Finding],
    asked: Sequence[Check],
    useful: Sequence[Check],
    *,
    keep_going: bool,
) -> list[Finding]:
    """The findings, with a note about checks that wrong values would make fail, too."""
    skipped = [
        check.name for check in asked if check not in useful and check.noted and check.applies(run)
    ]
    if not skipped:
        return found
    more = "" if keep_going else "; `--keep-going` runs all but repeat"
    note = f"{NOT_RUN}{listed(skipped)}: wrong values make them fail too{more}"
    return _with_detail(found, note)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def _with_detail(findings: list[Finding], note: str) -> list[Finding]:
    """Add a note to the detail of the first finding."""
    return [findings[0].with_notes(note), *findings[1:]] if findings else []
