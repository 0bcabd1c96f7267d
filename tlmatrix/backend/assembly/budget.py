"""What is wrong with kernels as machine code: they were not made, or ask for too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.backend.assembly.assembled import Assembled, Assembly
    from tlmatrix.spec.models import AssemblyRule, Spec
    from tlmatrix.spec.values import Value

__all__ = ["over_budget"]

_CHECK = "assembly"
_KIB = 1024
# Bytes of shared memory that one block may use: table "Technical Specifications per Compute
# Capability" of NVIDIA's CUDA C++ Programming Guide.
_SHARED_MEMORY = {
    "sm_75": 64 * _KIB,
    "sm_80": 163 * _KIB,
    "sm_86": 99 * _KIB,
    "sm_87": 163 * _KIB,
    "sm_88": 163 * _KIB,
    "sm_89": 99 * _KIB,
    "sm_90": 227 * _KIB,
    "sm_100": 227 * _KIB,
    "sm_103": 227 * _KIB,
    "sm_110": 227 * _KIB,
    "sm_120": 99 * _KIB,
    "sm_121": 99 * _KIB,
}
_TENSOR_MEMORY = 512
"""Columns of tensor memory that a multiprocessor has: PTX ISA, section on tcgen05."""
_LINES = 12
"""Of a compiler's words: what is more is mostly its own stack."""


def over_budget(
    spec: Spec, values: Mapping[str, Value], assemblies: Sequence[Assembly]
) -> list[Finding]:
    """Findings about the kernels of one case on one architecture."""
    findings = [finding for each in assemblies for finding in _limits(each)]
    if not assemblies:
        return findings
    arch = assemblies[0].arch
    names = {**values, "arch": arch, "backend": "compile"}
    for rule in spec.assembly:
        if rule.when is not None and not rule.when.evaluate(names):
            continue
        fitting = [each for each in assemblies if rule.kernel in (None, each.kernel)]
        if not fitting:
            known = list(dict.fromkeys(each.kernel for each in assemblies))
            others = suggestion(rule.kernel or "", known, "The case has")
            title = f"there is no kernel {rule.kernel!r}{others}"
            hint = "correct `kernel` of the rule, or narrow its `when`"
            findings.append(Finding(_CHECK, title, hint=hint, pattern=f"no {rule.kernel}"))
        for each in fitting:
            for part in each.parts:
                findings += _rule(rule, each, part)
    return findings


def _limits(assembly: Assembly) -> Iterator[Finding]:
    """What no spec allows: a kernel that cannot be made, or cannot be launched."""
    if assembly.error:
        verb = "lowered" if assembly.stage == "lower" else "assembled"
        lines = assembly.error.splitlines()
        words = _telling(lines)
        yield Finding(
            check=_CHECK,
            title=f"{assembly.kernel} cannot be {verb} for {assembly.arch}: {words}",
            where=assembly.place or None,
            detail="\n".join(lines[-_LINES:]) if len(lines) > 1 else None,
            pattern=f"{assembly.kernel} {assembly.arch} {assembly.stage}",
        )
    for part in assembly.parts:
        limit = _SHARED_MEMORY.get(assembly.arch.rstrip("af"))
        if limit is not None:
            yield from _most(assembly, part, "shared_memory", limit, f"{assembly.arch} has")
        yield from _most(assembly, part, "tensor_memory", _TENSOR_MEMORY, f"{assembly.arch} has")


def _rule(rule: AssemblyRule, assembly: Assembly, part: Assembled) -> Iterator[Finding]:
    for instruction in rule.instructions:
        if not part.has(instruction):
            near = sorted(
                {name for name in part.instructions if "mma" in name.split(".")[0] + name}
            )
            yield Finding(
                check=_CHECK,
                title=f"{assembly.kernel} on {assembly.arch} has no {instruction}",
                where=assembly.place or None,
                hint=f"its matrix products are {', '.join(near)}" if near else None,
                pattern=f"{assembly.kernel} {assembly.arch} no {instruction}",
            )
    for quantity in ("registers", "spills", "shared_memory", "tensor_memory"):
        limit = getattr(rule, quantity)
        if limit is not None:
            yield from _most(assembly, part, quantity, limit, "the spec allows")


_WORDS = {
    "registers": "registers a thread",
    "spills": "bytes of spills",
    "shared_memory": "bytes of shared memory",
    "tensor_memory": "columns of tensor memory",
}


def _most(
    assembly: Assembly, part: Assembled, quantity: str, limit: int, who: str
) -> Iterator[Finding]:
    used = getattr(part, quantity)
    if used > limit:
        yield Finding(
            check=_CHECK,
            title=f"{assembly.kernel} on {assembly.arch}: {used} {_WORDS[quantity]}, {who} {limit}",
            where=assembly.place or None,
            expected=float(limit),
            got=float(used),
            pattern=f"{assembly.kernel} {assembly.arch} {quantity}",
        )


def _telling(lines: Sequence[str]) -> str:
    """The line of a compiler's words that says what is wrong: the first error, else the first."""
    for line in lines:
        if "error" in line.lower():
            return line.strip()
    return lines[0].strip()
