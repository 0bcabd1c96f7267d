"""The check `determinism`: equal calls give equal results, also in other ways through autograd.

Results are compared bit for bit, or within the error bounds of both calls.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.compared import of_call
from tlmatrix.check.diagnose import diagnose
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.check.memory import same_bits
from tlmatrix.check.numeric import beyond_limits, describe_mismatch
from tlmatrix.check.running import Results, run_guarded
from tlmatrix.check.sanitizers import finding_of
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem.model import AutogradVariant, InapplicableError
from tlmatrix.problem.sharding import has_idle_rank
from tlmatrix.problem.storage import changeable_inputs
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.check.running import CaseRun
    from tlmatrix.problem.model import Problem, Tensors

_RUNS = 3
"""Equal calls that are compared, including the first call."""
_ON_STREAMS = 8
"""Of this many cases on several ranks, one makes equal calls on streams that nothing orders."""
_OF_INFERENCE = 6
"""Of this many differentiable cases, one is called with inputs that require no grad, too."""
_OF_RANKS = 3
"""Of this many cases on several ranks, one is called in another way, too."""
_WITH_FEWER_GRADIENTS = frozenset(
    {"strided", "transposed", "twice", "shared", "expanded", "absent"}
)
"""Autograd variants that may ask for the gradients of some inputs alone."""


def compare_runs(
    first: Tensors,
    again: Tensors,
    bounds: ReferenceBounds,
    *,
    exact: bool,
    against: str = "the first of the equal calls",
) -> list[Finding]:
    """Findings about results that differ between two runs of the same problem.

    With `exact`, the numbers must be equal: -0.0 is 0.0, and a NaN any NaN. Otherwise elements may
    differ by the sum of both runs' error bounds.
    """
    found = []
    for name, tensor in first.items():
        if name not in bounds.problem.outputs or name not in again:
            continue
        other = again[name]
        if same_bits(tensor, other):
            continue
        # Signs of zeros and payloads of NaNs may differ even if `exact`.
        nothing = torch.zeros_like(tensor, dtype=torch.float64)
        limits = [nothing] if exact else bounds.limits_of_two_runs(name)
        deviation = beyond_limits(other, tensor, limits)
        if deviation is not None:
            found.append(
                diagnose("determinism", name, deviation, bounds, against=against, exact=exact)
            )
    return found


def raised(check: str, error: BaseException, words: str = "") -> Finding:
    """The finding of a run that raised although an earlier one did not; `words` name the run."""
    if isinstance(error, FindingsError):
        first = error.findings[0]
        title = f"{words.strip()}: {first.title}" if words else first.title
        return replace(first, check=check, title=title)
    reports = getattr(getattr(error, "error", error), "reports", ())
    if reports:
        finding = finding_of(reports[0])
        title = f"{words.strip(' :')}: {finding.title}" if words else finding.title
        return replace(finding, check=check, title=title)
    title = f"{words}raised {type(error).__name__}: {error}"
    trace: str = getattr(error, "trace", "")
    return Finding(check, title, pattern="raised", detail=trace or None)


# Equal calls --------------------------------------------------------------------------------------


def check_equal_calls(run: CaseRun, runs: int = _RUNS) -> list[Finding]:
    """Findings about the first of `runs` equal calls that differs from the first call of a case.

    The last of them leaves out options that have their defaults (`Problem.defaults`). After them,
    one mostly goes through autograd in another way, which the case's seed selects, and in some
    cases one is made as for inference: an entry may take another path then, or other memory.
    """
    variant = _autograd_variant(run, runs)
    # On ranks the third call reuses double-buffered memory.
    equal = runs if variant is None or run.on_ranks else runs - 1
    calls = [run.problem] * (equal - 1)
    if calls and run.problem.defaults and (runs >= _RUNS or run.case.seed // 2 % 2):
        calls[-1] = replace(run.problem, left_out=run.problem.defaults)
    found = _differing_calls(run, calls)
    if found and any(each.left_out for each in calls):
        # Equal calls may differ, too.
        return _differing_calls(run, [run.problem] * len(calls)) or _of_defaults(run, found)
    if not found and variant is not None:
        found = _called_differently(run, variant)
    if not found and _is_called_for_inference(run):
        found = _called_differently(run, AutogradVariant("plain"))
    return found


def _is_called_for_inference(run: CaseRun) -> bool:
    if "gradients" not in run.checks or not run.problem.cotangents:
        return False
    return run.case.seed // 7 % _OF_INFERENCE == 0


def _differing_calls(run: CaseRun, calls: Sequence[Problem]) -> list[Finding]:
    """Findings about the first of some calls whose results differ from those of the case."""
    results = _equal_calls(run, calls)
    for index in range(len(calls)):
        try:
            again = next(results)
        except BaseException as error:
            if unwinds(error):
                raise
            return [raised("determinism", error, f"call {index + 2} of the same problem ")]
        for name, info in run.problem.outputs.items():
            mismatch = name in run.results and describe_mismatch(name, info, again.get(name))
            if mismatch:
                return [Finding("determinism", mismatch, tensor=name, pattern="shape")]
        found = compare_runs(run.results, again, run.bounds, exact=run.deterministic)
        if found:
            return [of_call(each, calls, index, run.problem) for each in found]
    return []


def _equal_calls(run: CaseRun, calls: Sequence[Problem]) -> Iterator[Tensors]:
    if run.on_ranks:
        streams = run.sanitizers is not None and run.case.seed % _ON_STREAMS == 1
        idle = has_idle_rank(run.spec, run.problem)
        # The host waits in two calls, which allocate halves of double-buffered memory. The
        # fourth call reuses that of the second. A rank without a share may have skipped a wait.
        more = [run.problem] * (4 - len(calls)) if streams or idle else []
        yield from run.in_a_row([*calls, *more], streams=streams)
    else:
        for problem in calls:
            yield run.again(problem)


def _of_defaults(run: CaseRun, found: Sequence[Finding]) -> list[Finding]:
    """Findings about a call without options that have the value of their default."""
    names = ", ".join(run.problem.defaults)
    because = (
        f"the call without {names} differs, and the case gives them what their defaults stand for"
    )
    return [
        replace(each, title=f"without {names}: {each.title}", hint=None).with_notes(because)
        for each in found
    ]


# Autograd -----------------------------------------------------------------------------------------


def _autograd_variant(run: CaseRun, runs: int) -> AutogradVariant | None:
    """The variant of the last call; of two calls, and of ranks, not in all cases."""
    seed = run.case.seed
    if "gradients" not in run.checks or (runs < _RUNS and seed % 2):
        return None
    if run.on_ranks:
        return None if seed // 3 % _OF_RANKS else pick_variant_of_ranks(run.problem, seed)
    return pick_autograd_variant(run.problem, seed)


def pick_autograd_variant(problem: Problem, seed: int) -> AutogradVariant | None:
    """Another way to call a differentiable entry, selected by the case's seed.

    None if the problem has no gradients.
    """
    inputs = sorted(set(problem.gradient_of.values()))
    if not problem.cotangents or not inputs:
        return None
    generator = seeded_generator(seed + 2)
    variants = [
        AutogradVariant("strided"),
        AutogradVariant("transposed"),
        AutogradVariant("twice"),
        AutogradVariant("shared"),
        AutogradVariant("expanded"),
        AutogradVariant("no_grad"),
    ]
    if len(inputs) > 1:
        variants.append(AutogradVariant("some", requires=_some(inputs, generator)))
    changeable = changeable_inputs(problem)
    if changeable:
        variants.append(AutogradVariant("changed", (generator.choice(changeable),)))
    outputs = sorted(problem.cotangents)
    if len(outputs) > 1:
        absent = generator.sample(outputs, generator.randrange(1, len(outputs)))
        variants.append(AutogradVariant("absent", tuple(sorted(absent))))
    if set(problem.returns) - set(outputs):
        variants.append(AutogradVariant("claimed"))
    variant = generator.choice(variants)
    if variant.kind in _WITH_FEWER_GRADIENTS and len(inputs) > 1 and generator.random() < 0.5:
        return replace(variant, requires=_some(inputs, generator))
    return variant


def pick_variant_of_ranks(problem: Problem, seed: int) -> AutogradVariant | None:
    """Another way to call an entry on several ranks: mostly for the gradients of some inputs.

    Ranks may skip communication then, and still wait for each other.
    """
    if seed // 9 % 2:
        return pick_autograd_variant(problem, seed)
    inputs = sorted(set(problem.gradient_of.values()))
    if not problem.cotangents or len(inputs) < 2:
        return None
    return AutogradVariant("some", requires=_some(inputs, seeded_generator(seed + 2)))


def _some(inputs: Sequence[str], generator: random.Random) -> tuple[str, ...]:
    """Some of the inputs, but not all: half the time a single one."""
    most = generator.choice([2, len(inputs)])
    return tuple(sorted(generator.sample(inputs, generator.randrange(1, most))))


def seeded_generator(seed: int) -> random.Random:
    """Independent of the one that picks a relation's sequence or head, which has the same seed."""
    return random.Random(seed ^ 0x70A7E)  # noqa: S311 - test data, not secrets


def _called_differently(run: CaseRun, variant: AutogradVariant) -> list[Finding]:
    """Findings about results that change with the way in which autograd calls the entry."""
    first, bounds = run.results, run.bounds
    try:
        if variant.baseline is not None:
            first = run.again(replace(run.problem, autograd=variant.baseline))
            bounds = _bounds_of_values(run, first)
        differently = replace(run.problem, autograd=variant)
        if variant.requires or variant.kind == "plain":
            # Kernels may write gradients that were not asked for, to memory that is none, and
            # results over inputs that no backward pass needs.
            again, written = run_guarded(run.execute, differently, poison=True)
            if written and "guards" in run.checks:
                return [replace(each, title=f"with {variant}: {each.title}") for each in written]
        else:
            again = run.again(differently)
    except InapplicableError:
        return []  # autograd refused, as it should
    except BaseException as error:
        if unwinds(error):
            raise
        return [raised("determinism", error, f"with {variant}: ")]
    hint = f"the results depend on the way in which autograd calls the entry: {variant}"
    if variant.kind == "changed":
        hint += "; with ctx.save_for_backward autograd refuses such a backward pass"
    for name, title in _misfits(run, first, again):
        return [Finding("determinism", title, tensor=name, pattern="shape", hint=hint)]
    # Another layout may change the order of sums, as in reductions of PyTorch.
    found = compare_runs(first, again, bounds, exact=False)
    if not found:
        return []
    try:
        equal = run.again(replace(run.problem, autograd=variant.baseline))
    except BaseException as error:
        if unwinds(error):
            raise
        return [raised("determinism", error, "an equal call ")]
    unstable = compare_runs(first, equal, bounds, exact=run.deterministic)
    return unstable or [
        of_call(replace(finding, hint=hint), [differently], 0, run.problem) for finding in found
    ]


def _misfits(run: CaseRun, first: Tensors, again: Tensors) -> Iterator[tuple[str, str]]:
    """Results of another call through autograd that are absent, or have another shape, and why."""
    gradients = run.problem.gradient_of
    if isinstance(again, Results):
        for name, why in again.absent.items():
            if name in first and (name in gradients or _depends_on_inputs(run, name)):
                yield name, f"no gradient {name}: {why}"
    for name, got in again.items():
        mismatch = name in first and describe_mismatch(name, run.problem.outputs[name], got)
        if mismatch:
            yield name, mismatch


def _bounds_of_values(run: CaseRun, results: Tensors) -> ReferenceBounds:
    """Error bounds that follow from the size of results, which have no reference."""
    outputs = {
        name: replace(run.problem.outputs[name], magnitude=None, spread=None, exponent=None)
        for name in results
        if name in run.problem.outputs
    }
    exact = {name: results[name].double() for name in outputs}
    problem = replace(run.problem, outputs=outputs, reference=lambda: exact, lowp=dict)
    return ReferenceBounds(problem, run.spec.tolerance, run.arch)


def _depends_on_inputs(run: CaseRun, name: str) -> bool:
    """Whether the reference of an output changes with an input that has a gradient."""
    problem = run.problem
    if problem.with_inputs is None or not problem.has_reference:
        return False
    inputs = set(problem.gradient_of.values())
    other = problem.with_inputs({each: problem.inputs[each] * 0.5 for each in inputs})
    return not bool((other.reference()[name] == problem.reference()[name]).all())
