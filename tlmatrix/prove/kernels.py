"""Proves all properties of a kernel, and of the kernels that a spec launches, side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.interpreter.analysis.accesses import accesses_of
from tlmatrix.interpreter.analysis.shared import shared_memory, tensor_memory
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.frontend.lowered import over_budget
from tlmatrix.interpreter.frontend.programs import content_key, kept, sources_key
from tlmatrix.interpreter.ir.rewrites import normalized
from tlmatrix.interpreter.sync.externs import is_modelled
from tlmatrix.problem import family_for
from tlmatrix.processes import end_with
from tlmatrix.spec.expr.expression import Expression

from .answers import KernelProofs, Proof, SpecProofs
from .coverage import coverage
from .facts import facts_of
from .launches import observe, variants
from .phases import phases
from .properties import (
    LARGEST_GRIDS,
    answered,
    assumptions,
    bounds,
    equal_bits,
    for_sizes,
    grid,
    overflow,
    own_sequence,
    races,
)
from .refuting import refuted
from .solving import Questions

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir import nodes as ir
    from tlmatrix.matrix import Case
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

    from .facts import Observation
    from .launches import KernelUse

_INTEGERS = ("int32", "int64")
_VARIANTS = 3
"""Cases with several other sizes whose launches are observed, for each configuration."""


def prove_kernel(
    use: KernelUse, given: Iterable[str], launches: Sequence[Observation] = ()
) -> KernelProofs:
    """The answers to all properties of a kernel; kept on disk by its IR and the facts.

    Args:
        use: the kernel and its launches.
        given: conditions on sizes that the spec states.
        launches: values that refute a property are sought among those like one of them.
    """
    began = time.monotonic()
    found = KernelProofs(use.name, use.case, tuple(use.architectures))
    try:
        accesses = accesses_of(use.kernel())
        memory = list(budgets(use))
        kernel = accesses.kernel
        tables = [
            buffer
            for buffer in kernel.buffer_map.values()
            if buffer.data in accesses.constants and buffer.dtype in _INTEGERS
        ]
        facts = facts_of(accesses, tables, use.observed, use.alike, given)
    except Unsupported as error:
        return replace(found, unsupported=str(error))
    unwritten = sorted({name for each in use.observed for name in each.unwritten})
    texts = [str(fact) for fact in facts]
    scalars = [v.name for v in kernel.params if v not in kernel.buffer_map]
    seen = {n: max(abs(each.symbols.get(n, 0)) for each in use.observed) for n in scalars}
    like = [(each.symbols, {k: v.tolist() for k, v in each.tables.items()}) for each in launches]
    about = ("proofs", sources_key(Path(__file__).parent), texts, unwritten, seen, use.bits, like)

    def asked() -> tuple[Proof, ...]:
        questions = Questions(accesses, facts, seen, launches)
        return tuple(_proofs(questions, tables, frozenset(unwritten), bits=use.bits))

    proofs = kept(partial(content_key, use.text, *about), tuple, asked)
    return replace(found, proofs=(*proofs, *memory), seconds=time.monotonic() - began)


def budgets(use: KernelUse) -> Iterator[Proof]:
    """The memory that a block needs exists on each architecture; nothing is asked of Z3.

    Raises:
        Unsupported: the interpreter does not model the kernel.
    """
    kernel = normalized(use.kernel(), is_modelled)
    needs = shared_memory(kernel), tensor_memory(kernel)
    for arch, case in use.architectures.items():
        proof = Proof("budget", arch, "proven")
        for fault in over_budget(kernel.name, *needs, arch)[:1]:
            proof = replace(proof, answer="refuted", case=case, arch=arch, finding=fault.message)
            proof = replace(proof, reason="a block needs too much")
        yield proof


def _proofs(
    questions: Questions, tables: list[ir.Buffer], unwritten: frozenset[str], *, bits: bool
) -> Iterator[Proof]:
    accesses = questions.accesses
    answer = partial(answered, questions)
    for buffer in accesses.kernel.buffer_map.values():
        if buffer.dtype in _INTEGERS and all(
            a.kind == "atomic" or a.operation.startswith("call_") for a in accesses.of(buffer)
        ):
            continue  # blocks order each other by it
        written = bool(accesses.of(buffer, "write"))
        if written or (accesses.of(buffer, "atomic") and accesses.of(buffer, "read")):
            yield answer("races", buffer.name, races(questions, buffer))
            if written and buffer.name in unwritten and not accesses.of(buffer, "read", "atomic"):
                yield coverage(questions, buffer)
        if bits and "float" in buffer.dtype and accesses.of(buffer, "atomic"):
            yield answer("equal bits", buffer.name, equal_bits(questions, buffer))
        proof = own_sequence(questions, buffer)
        if proof is not None:
            yield proof
    # TileLang guards accesses of other memory.
    data = {table.data for table in tables}
    for subject, found in {
        "shared memory": [a for a in accesses.found if a.buffer.scope.startswith("shared")],
        "fragments": [a for a in accesses.found if a.buffer.scope.startswith("local")],
        "tables": [a for a in accesses.found if a.buffer.data in data],
    }.items():
        if found:
            yield answer("bounds", subject, bounds(questions, found))
    yield for_sizes(questions, "overflow", "int32", overflow)
    yield for_sizes(questions, "grid", "blocks", grid, LARGEST_GRIDS)
    if accesses.claims:
        yield answer("assumptions", "T.assume", assumptions(questions, accesses.claims))
    for barrier in {each.barrier.data: each.barrier for each in accesses.events}.values():
        yield from phases(questions, barrier)


# Of specs -----------------------------------------------------------------------------------------


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
    ask = partial(prove_kernel, given=tuple(spec.prove.given))
    with process_pool(workers) as pool:
        answers = pool.map(ask, uses) if workers > 1 < len(uses) else map(ask, uses)
        for use, proven in zip(uses, answers, strict=True):
            proofs = []
            refuting: list[Case] = []
            for proof in proven.proofs:
                # Variants of one kernel have the same fault.
                key = (use.name, proof.name, proof.subject, proof.place)
                if proof.answer == "unknown" and proof.values is not None and key not in tried:
                    tried.add(key)
                    cases_tried = [*refuting, own[use.case]]
                    proof, shown = refuted(runner, spec, use, cases_tried, proof)  # noqa: PLW2901
                    refuting += [shown] if shown is not None and shown not in refuting else []
                proofs.append(_of_spec(spec, proven, proof))
            found.append(replace(proven, proofs=tuple(proofs)))
    known = {use.text for use in uses}
    for use in observe(spec, wider, architectures, roots=roots)[0]:
        if use.text not in known:
            with suppress(Unsupported):
                each = KernelProofs(use.name, use.case, tuple(use.architectures))
                proofs = [_of_spec(spec, each, proof) for proof in budgets(use)]
                found.append(replace(each, proofs=tuple(proofs)))
    return SpecProofs(tuple(found), tuple(failed), tuple(_contradicted(spec, uses)))


def _contradicted(spec: Spec, uses: Sequence[KernelUse]) -> Iterator[str]:
    """The conditions of the spec that do not hold in a launch."""
    for text in spec.prove.given:
        condition = Expression(text)
        for use in uses:
            known = [o.symbols for o in use.observed if condition.names <= o.symbols.keys()]
            if not all(condition.evaluate(symbols) for symbols in known):
                yield f"prove.given: {text} does not hold in a launch of {use.name}"
                break


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
