"""Proves the kernels of a spec: observes, asks in processes side by side, refutes with cases."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from typing import TYPE_CHECKING

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.problem import family_for
from tlmatrix.processes import end_with
from tlmatrix.spec.expr.expression import Expression

from .answers import KernelProofs, SpecProofs
from .cases import variants
from .kernels import budgets, prove_kernel
from .launches import observe
from .refuting import refuted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from tlmatrix.matrix import Case
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

    from .answers import Proof
    from .launches import KernelUse

_VARIANTS = 3
"""Cases with several other sizes whose launches are observed, for each configuration."""


def prove_spec(
    spec: Spec,
    cases: Sequence[Case],
    runner: Runner,
    *,
    wider: Sequence[Case] = (),
    arch: str = "",
    workers: int = 1,
    roots: Sequence[Path] = (),
) -> SpecProofs:
    """Prove the kernels that cases of a spec launch.

    Args:
        spec: the spec.
        cases: some of its cases.
        wider: cases with other options, of whose kernels only the memory is looked at.
        runner: runs cases that may refute a property, on the interpreter.
        arch: the architecture that kernels are traced for, by default each of the spec.
        workers: processes that ask side by side.
        roots: folders from which entries are imported.
    """
    architectures = (arch,) if arch else tuple(spec.architectures) or ("sm_90a",)
    own = {case.id: case for case in cases}
    compile_key = family_for(spec).compile_key
    first = {compile_key(spec, case.values): case for case in reversed(cases)}
    more = [each for case in first.values() for each in variants(spec, case, _VARIANTS)]
    uses, failed = observe(spec, [*cases, *more], architectures, roots=roots)
    own |= {case.id: case for case in more}
    found = []
    tried: set[tuple[str, str, str, str]] = set()
    for use, proven in _asked(uses, spec, workers):
        proofs = []
        refuting: list[Case] = []
        for proof in proven.proofs:
            # Variants of one kernel have the same fault.
            key = (use.name, proof.name, proof.subject, proof.place)
            if proof.answer == "unknown" and proof.values is not None and key not in tried:
                tried.add(key)
                tried_cases = [*refuting, own[use.case]]
                proof, shown = refuted(runner, spec, use, tried_cases, proof)  # noqa: PLW2901
                refuting += [shown] if shown is not None and shown not in refuting else []
            proofs.append(_of_spec(spec, proven, proof))
        found.append(replace(proven, proofs=tuple(proofs)))
    found += _budgets(spec, wider, architectures, roots, {use.text for use in uses})
    return SpecProofs(tuple(found), tuple(failed), tuple(_contradicted(spec, uses)))


def _budgets(
    spec: Spec,
    cases: Sequence[Case],
    architectures: Sequence[str],
    roots: Sequence[Path],
    known: Collection[str],
) -> Iterator[KernelProofs]:
    """The memory of the kernels of cases, but for those that are known."""
    uses, _ = observe(spec, cases, architectures, roots=roots)
    for use in uses:
        if use.text not in known:
            with suppress(Unsupported):
                found = KernelProofs(use.name, use.case, tuple(use.architectures))
                yield replace(
                    found, proofs=tuple(_of_spec(spec, found, proof) for proof in budgets(use))
                )


def _contradicted(spec: Spec, uses: Sequence[KernelUse]) -> Iterator[str]:
    """The conditions of the spec that do not hold in a launch."""
    for text in spec.prove.given:
        condition = Expression(text)
        for use in uses:
            known = [o.symbols for o in use.observed if condition.names <= o.symbols.keys()]
            if not all(condition.evaluate(symbols) for symbols in known):
                yield f"prove.given: {text} does not hold in a launch of {use.name}"
                break


def _asked(
    uses: Sequence[KernelUse], spec: Spec, workers: int
) -> Iterator[tuple[KernelUse, KernelProofs]]:
    given = dict(spec.prove.given)
    if workers <= 1 or len(uses) <= 1:
        for use in uses:
            yield use, prove_kernel(use, given)
        return
    with process_pool(workers) as pool:
        yield from zip(uses, pool.map(prove_kernel, uses, [given] * len(uses)), strict=True)


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Processes that end with this one, whatever ends it."""
    return ProcessPoolExecutor(
        workers, get_context("forkserver"), initializer=end_with, initargs=(os.getpid(),)
    )


def _of_spec(spec: Spec, kernel: KernelProofs, proof: Proof) -> Proof:
    """A property with its case as commands name it, or the reason that the spec lets it unknown."""
    if proof.answer == "unknown":
        return replace(proof, because=spec.prove.unknown.get(f"{kernel.name}: {proof}", ""))
    return replace(proof, case=f"{spec.path}::{proof.case}") if proof.case else proof
