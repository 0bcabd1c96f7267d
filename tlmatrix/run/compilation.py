"""Judges a case by compiling the kernels that it launches, which do not run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import CompileBackend, EntryError
from tlmatrix.backend.assembly import check_budgets
from tlmatrix.backend.binding import execute
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.distributed.entry import trace
from tlmatrix.run.outcome import Outcome, bug_words, combined, with_bug
from tlmatrix.run.process_state import StateGuard
from tlmatrix.run.result import Status
from tlmatrix.spec.model.spec import has_ranks
from tlmatrix.tracebacks import user_traceback

if TYPE_CHECKING:
    from tlmatrix.backend.assembly import Assembler, CompiledKernel, Keep
    from tlmatrix.backend.binding import Binding
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem
    from tlmatrix.run.execution import JudgeOptions
    from tlmatrix.run.harness import Harness
    from tlmatrix.run.measurements import Measurements
    from tlmatrix.spec.model.spec import Spec

_REPORTED = {"mma", "wgmma", "tcgen05", "cp", "ldmatrix", "stmatrix", "red", "atom", "setmaxnreg"}
"""Instructions that show how a kernel computes and moves data."""


def compile_case(
    harness: Harness, spec: Spec, case: Case, options: JudgeOptions, measurements: Measurements
) -> Outcome:
    """Compile the kernels of a case for each architecture; known bugs apply to each.

    Raises:
        SpecError: the spec does not match its code.
        ArchitectureError: the spec's kernels are for none of the requested architectures.
    """
    from tlmatrix.matrix import known_bug

    backend = harness.backend
    assert isinstance(backend, CompileBackend)
    outcomes, facts, missing = [], [], []
    for arch in backend.architectures(spec.architectures):
        bug = known_bug(spec, case, {"arch": arch, "backend": backend.name})
        if bug is not None and bug.mode == "quarantine":
            outcomes.append(Outcome(Status.QUARANTINED, message=bug_words(bug)))
            continue
        bound = harness.bind(spec, replace(backend, requested=(arch,)))
        with measurements.phase("problem"):
            problem = harness.problem(bound, spec, case, options.seed)
        measurements.elements = sum(tensor.numel() for tensor in problem.inputs.values())
        with measurements.phase("entry"):
            assembler = harness.assembler()
            compiled = _compile(spec, case, bound.binding, problem, assembler, harness.keep)
        facts += [fact for kernel in compiled.kernels for fact in kernel_facts(kernel)]
        missing += [f"{arch}: {reason}" for reason in compiled.missing]
        status = Status.FAILED if compiled.findings else Status.PASSED
        outcome = Outcome(status, compiled.findings)
        outcomes.append(outcome if bug is None else with_bug(outcome, bug, all_checks=True))
    return combined(outcomes, tuple(facts), missing)


@dataclass(frozen=True)
class _Compiled:
    """A case on one architecture; `missing` has the reasons why kernels were not assembled."""

    kernels: tuple[CompiledKernel, ...]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]


def _compile(
    spec: Spec,
    case: Case,
    binding: Binding,
    problem: Problem,
    assembler: Assembler,
    keep: Keep | None,
) -> _Compiled:
    """Trace the launches of the code under test, forward and backward, and compile the kernels.

    On several ranks these are the launches of all of them; equal kernels are compiled once.

    Raises:
        BindingError: arguments or results do not match the spec.
    """
    backend = binding.backend
    assert isinstance(backend, CompileBackend)
    backend.launched.clear()
    findings: list[Finding] = []
    left_changed: list[Finding] = []
    try:
        with StateGuard("the entry", left_changed, patches=True):
            _trace(binding, problem)
    except FindingsError as error:
        findings += error.findings
    except EntryError as error:
        words = f"{type(error.error).__name__}: {error.error}".splitlines()[0]
        where = f"{error.where}, " if error.where else ""
        findings.append(
            Finding(
                check="entry",
                title=f"{where}traced for {backend.target}, raises {words}",
                detail=user_traceback(error.error),
                pattern=f"{backend.target} {type(error.error).__name__}",
            )
        )
    findings += left_changed if "guards" in spec.checks else []
    compiled = [assembler.assemble(kernel, backend.target) for kernel in backend.launched]
    if keep is not None:
        for kernel, result in zip(backend.launched, compiled, strict=True):
            keep.write(spec.name, kernel, result, assembler)
    kernels = tuple({each.key: each for each in compiled}.values())
    findings += check_budgets(spec, case.values, kernels)
    missing = tuple(dict.fromkeys(each.missing for each in kernels if each.missing))
    return _Compiled(kernels, tuple(findings), missing)


def _trace(binding: Binding, problem: Problem) -> None:
    """Call the code under test; the backend records its launches."""
    if has_ranks(binding.spec):
        trace(binding, problem)
    else:
        execute(binding, problem)


def kernel_facts(compiled: CompiledKernel) -> list[dict[str, Any]]:
    """Describe a compiled kernel for a results file: plain data, without zeros and empty values.

    `kernel`, `arch`, `key` (equal for equal machine code), `registers`, `spills`, `stack`,
    `shared_memory` and `tensor_memory` as in `MachineCode`, counts of `_REPORTED` instructions, and
    the number of all PTX instructions (`ptx`).
    """
    about = {
        "kernel": compiled.kernel,
        "arch": compiled.arch,
        "key": compiled.key,
        "error": compiled.stage,
        "lower_seconds": compiled.lower_seconds,
        "assemble_seconds": compiled.assemble_seconds,
    }
    facts = []
    for part in compiled.parts:
        instructions: Counter[str] = Counter()
        for name, count in part.instructions.items():
            if name.split(".")[0] in _REPORTED:
                instructions[_kind(name)] += count
        facts.append(
            about
            | {
                "registers": part.registers,
                "spills": part.spills,
                "stack": part.stack,
                "shared_memory": part.shared_memory,
                "tensor_memory": part.tensor_memory,
                "barriers": part.barriers,
                "threads": part.threads,
                "instructions": dict(sorted(instructions.items())),
                "ptx": sum(part.instructions.values()),
                "warnings": list(part.warnings),
            }
        )
    return [{name: value for name, value in fact.items() if value} for fact in facts or [about]]


def _kind(name: str) -> str:
    """The instruction without modifiers: `cp.async.bulk` of `cp.async.bulk.tensor.2d…`."""
    parts = name.split(".")
    length = 3 if parts[:3] == ["cp", "async", "bulk"] else 2
    return ".".join(parts[:length])
