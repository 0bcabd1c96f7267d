"""Compiles the kernels that a case launches, without running them: the backend `compile`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import CompileBackend, EntryError, execute
from tlmatrix.backend.assembly import check_budgets
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.spec.model.sharding import has_ranks
from tlmatrix.tracebacks import user_traceback

if TYPE_CHECKING:
    from tlmatrix.backend import Binding
    from tlmatrix.backend.assembly import Assembler, CompiledKernel
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec

__all__ = ["CompiledCase", "compile_case", "kernel_facts"]

_REPORTED = {"mma", "wgmma", "tcgen05", "cp", "ldmatrix", "stmatrix", "red", "atom", "setmaxnreg"}
"""Instructions that show how a kernel computes and moves data."""


@dataclass(frozen=True)
class CompiledCase:
    """A case on one architecture; `missing` has the reasons why kernels were not assembled."""

    kernels: tuple[CompiledKernel, ...]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]


def compile_case(
    spec: Spec, case: Case, binding: Binding, problem: Problem, assembler: Assembler
) -> CompiledCase:
    """Trace the launches of the code under test, forward and backward, and compile the kernels.

    On several ranks these are the launches of all of them; equal kernels are compiled once.

    Raises:
        BindingError: arguments or results do not match the spec.
    """
    backend = binding.backend
    assert isinstance(backend, CompileBackend)
    backend.launched.clear()
    findings: list[Finding] = []
    try:
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
    compiled = [assembler.assemble(kernel, backend.target) for kernel in backend.launched]
    kernels = tuple({each.key: each for each in compiled}.values())
    findings += check_budgets(spec, case.values, kernels)
    missing = tuple(dict.fromkeys(each.missing for each in kernels if each.missing))
    return CompiledCase(kernels, tuple(findings), missing)


def _trace(binding: Binding, problem: Problem) -> None:
    """Call the code under test; the backend records its launches."""
    if has_ranks(binding.spec):
        from tlmatrix.backend.ranks.entry import trace_on_ranks

        trace_on_ranks(binding, problem)
    else:
        execute(binding, problem)


def kernel_facts(compiled: CompiledKernel) -> list[dict[str, Any]]:
    """Describe a compiled kernel for a results file: plain data, without zeros and empty values.

    `kernel`, `arch`, `key` (equal for equal machine code), `registers`, `spills`, `stack`,
    `shared_memory` and `tensor_memory` as in `MachineCode`, and counts of `_REPORTED` instructions.
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
                "warnings": list(part.warnings),
            }
        )
    return [{name: value for name, value in fact.items() if value} for fact in facts or [about]]


def _kind(name: str) -> str:
    """The instruction without modifiers: `cp.async.bulk` of `cp.async.bulk.tensor.2d…`."""
    parts = name.split(".")
    length = 3 if parts[:3] == ["cp", "async", "bulk"] else 2
    return ".".join(parts[:length])
