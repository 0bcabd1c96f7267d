"""A case on the backend `compile`: the kernels it launches, as machine code for an architecture."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import CompileBackend, EntryError, execute
from tlmatrix.backend.assembly import over_budget
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.spec.sharding import has_ranks
from tlmatrix.tracebacks import user_traceback

if TYPE_CHECKING:
    from tlmatrix.backend import Binding
    from tlmatrix.backend.assembly import Assembler, Assembly
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem
    from tlmatrix.spec.models import Spec

__all__ = ["AssembledCase", "assembled", "kernel_facts"]

_TOLD = {"mma", "wgmma", "tcgen05", "cp", "ldmatrix", "stmatrix", "red", "atom", "setmaxnreg"}
"""Instructions that say how a kernel computes and moves data."""


@dataclass(frozen=True)
class AssembledCase:
    """A case on one architecture; `missing` says what the toolkit here cannot do."""

    assemblies: tuple[Assembly, ...]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]


def assembled(
    spec: Spec, case: Case, binding: Binding, problem: Problem, assembler: Assembler
) -> AssembledCase:
    """Trace what the code under test launches, forward and backward, and assemble it.

    Where several ranks call it, that is what any of them launches; equal kernels count once.

    Raises:
        BindingError: arguments or results do not fit what the spec says.
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
    made = [assembler.assemble(kernel, backend.target) for kernel in backend.launched]
    assemblies = tuple({each.key: each for each in made}.values())
    findings += over_budget(spec, case.values, assemblies)
    missing = tuple(dict.fromkeys(each.missing for each in assemblies if each.missing))
    return AssembledCase(assemblies, tuple(findings), missing)


def _trace(binding: Binding, problem: Problem) -> None:
    """Call the code under test; the backend notes what is launched."""
    if has_ranks(binding.spec):
        from tlmatrix.backend.ranks.runner import trace_on_ranks

        trace_on_ranks(binding, problem)
    else:
        execute(binding, problem)


def kernel_facts(assembly: Assembly) -> list[dict[str, Any]]:
    """What a results file says of a kernel on an architecture: plain data, zeros left out.

    `kernel`, `arch`, `key` (equal for equal machine code), `registers`, `spills`, `stack`,
    `shared_memory` and `tensor_memory` as in `Assembled`, `instructions` that matter by kind.
    """
    about = {
        "kernel": assembly.kernel,
        "arch": assembly.arch,
        "key": assembly.key,
        "error": assembly.stage,
        "lower_seconds": assembly.lower_seconds,
        "assemble_seconds": assembly.assemble_seconds,
    }
    facts = []
    for part in assembly.parts:
        told: Counter[str] = Counter()
        for name, count in part.instructions.items():
            if name.split(".")[0] in _TOLD:
                told[_kind(name)] += count
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
                "instructions": dict(sorted(told.items())),
                "warnings": list(part.warnings),
            }
        )
    return [{name: value for name, value in fact.items() if value} for fact in facts or [about]]


def _kind(name: str) -> str:
    """`cp.async.bulk` of `cp.async.bulk.tensor.2d…`: what people call an instruction."""
    words = name.split(".")
    length = 3 if words[:3] == ["cp", "async", "bulk"] else 2
    return ".".join(words[:length])
