"""Checks compiled kernels: compiler errors, limits of the hardware, and budgets of the spec."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.backend.assembly.toolkit import CompiledKernel, MachineCode
    from tlmatrix.spec.model.spec import CodegenRule, Spec
    from tlmatrix.spec.values import Value

_CHECK = "codegen"
_KIB = 1024
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
"""Bytes of shared memory that one block may use: table "Technical Specifications per Compute
Capability" of NVIDIA's CUDA C++ Programming Guide."""
_TENSOR_MEMORY = 512
"""Columns of tensor memory per multiprocessor: PTX ISA, section on tcgen05."""
_LINES = 12
"""Lines of a compiler's message, or of a source, that a finding shows."""


def check_budgets(
    spec: Spec, values: Mapping[str, Value], kernels: Sequence[CompiledKernel]
) -> list[Finding]:
    """Return findings about the kernels of one case on one architecture."""
    findings = [finding for kernel in kernels for finding in _check_hardware(kernel)]
    if not kernels:
        return findings
    arch = kernels[0].arch
    names = {**values, "arch": arch, "backend": "compile"}
    for rule in spec.codegen:
        if rule.when is not None and not rule.when.evaluate(names):
            continue
        matching = [kernel for kernel in kernels if rule.kernel in (None, kernel.kernel)]
        if not matching:
            known = list(dict.fromkeys(kernel.kernel for kernel in kernels))
            others = suggestion(rule.kernel or "", known, "The case has")
            title = f"there is no kernel {rule.kernel!r}{others}"
            hint = "correct `kernel` of the rule, or narrow its `when`"
            findings.append(Finding(_CHECK, title, hint=hint, pattern=f"no {rule.kernel}"))
        for kernel in matching:
            findings += _check_source(rule, kernel)
            for part in kernel.parts:
                findings += _check_rule(rule, kernel, part)
    return findings


def _check_hardware(kernel: CompiledKernel) -> Iterator[Finding]:
    """Report compiler errors, and resources that no launch on the architecture can have."""
    if kernel.error:
        verb = "lowered" if kernel.stage == "lower" else "assembled"
        lines = kernel.error.splitlines()
        yield Finding(
            check=_CHECK,
            title=f"{kernel.kernel} cannot be {verb} for {kernel.arch}: {_first_error(lines)}",
            where=kernel.place or None,
            detail="\n".join(lines[-_LINES:]) if len(lines) > 1 else None,
            pattern=f"{kernel.kernel} {kernel.arch} {kernel.stage}",
        )
    for part in kernel.parts:
        limit = _SHARED_MEMORY.get(kernel.arch.rstrip("af"))
        if limit is not None:
            yield from _check_limit(kernel, part, "shared_memory", limit, f"{kernel.arch} has")
        yield from _check_limit(kernel, part, "tensor_memory", _TENSOR_MEMORY, f"{kernel.arch} has")


def _check_rule(rule: CodegenRule, kernel: CompiledKernel, part: MachineCode) -> Iterator[Finding]:
    for instruction in rule.instructions:
        if not part.has(instruction):
            near = sorted(
                {name for name in part.instructions if "mma" in name.split(".")[0] + name}
            )
            yield Finding(
                check=_CHECK,
                title=f"{kernel.kernel} on {kernel.arch} has no {instruction}",
                where=kernel.place or None,
                hint=f"its matrix products are {', '.join(near)}" if near else None,
                pattern=f"{kernel.kernel} {kernel.arch} no {instruction}",
            )
    for instruction in rule.forbidden:
        if found := part.matching(instruction):
            yield Finding(
                check=_CHECK,
                title=f"{kernel.kernel} on {kernel.arch} has {instruction}, which the spec forbids",
                where=kernel.place or None,
                detail=", ".join(f"{count} {name}" for name, count in found.items()),
                pattern=f"{kernel.kernel} {kernel.arch} has {instruction}",
            )
    for quantity in ("registers", "spills", "shared_memory", "tensor_memory"):
        limit = getattr(rule, quantity)
        if limit is not None:
            yield from _check_limit(kernel, part, quantity, limit, "the spec allows")


def _check_source(rule: CodegenRule, kernel: CompiledKernel) -> Iterator[Finding]:
    lines = [line.strip() for line in kernel.source.splitlines()]
    if not lines:  # not lowered, which is a finding of its own
        return
    source = f"the CUDA source of {kernel.kernel} on {kernel.arch}"
    for pattern in rule.source:
        if not any(re.search(pattern, line) for line in lines):
            yield Finding(
                check=_CHECK,
                title=f"no line of {source} matches {pattern}",
                where=kernel.place or None,
                pattern=f"{kernel.kernel} {kernel.arch} source without {pattern}",
            )
    for pattern in rule.forbidden_source:
        if found := [line for line in lines if re.search(pattern, line)]:
            yield Finding(
                check=_CHECK,
                title=f"{source} matches {pattern}, which the spec forbids",
                where=kernel.place or None,
                detail="\n".join(found[:_LINES]),
                pattern=f"{kernel.kernel} {kernel.arch} source with {pattern}",
            )


_UNITS = {
    "registers": "registers per thread",
    "spills": "bytes of spills",
    "shared_memory": "bytes of shared memory",
    "tensor_memory": "columns of tensor memory",
}


def _check_limit(
    kernel: CompiledKernel, part: MachineCode, quantity: str, limit: int, source: str
) -> Iterator[Finding]:
    used = getattr(part, quantity)
    if used > limit:
        yield Finding(
            check=_CHECK,
            title=f"{kernel.kernel} on {kernel.arch}: {used} {_UNITS[quantity]}, {source} {limit}",
            where=kernel.place or None,
            expected=float(limit),
            got=float(used),
            pattern=f"{kernel.kernel} {kernel.arch} {quantity}",
        )


def _first_error(lines: Sequence[str]) -> str:
    """The first line of a compiler's message that has an error, or else its first line."""
    for line in lines:
        if "error" in line.lower():
            return line.strip()
    return lines[0].strip()
