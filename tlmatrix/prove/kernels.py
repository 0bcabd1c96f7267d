"""All properties of one kernel."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.interpreter.analysis.accesses import accesses_of
from tlmatrix.interpreter.analysis.shared import shared_memory, tensor_memory
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.frontend.lowered import over_budget
from tlmatrix.interpreter.frontend.programs import content_key, program_cache
from tlmatrix.interpreter.ir.rewrites import normalized
from tlmatrix.interpreter.sync.externs import is_modelled

from .answers import KernelProofs, Proof
from .barriers import phases
from .coverage import coverage
from .facts import facts_of
from .properties import assumptions, bounds, equal_bits, grid, overflow, own_sequence, races
from .solving import Questions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.interpreter.analysis.accesses import Accesses
    from tlmatrix.interpreter.ir import nodes as ir

    from .facts import Observation
    from .launches import KernelUse

_INTEGERS = ("int32", "int64")
_UNGUARDED = {"shared memory": "shared", "fragments": "local"}
"""By subject, how the scopes of memory begin that TileLang does not guard."""


def prove_kernel(
    use: KernelUse, given: Mapping[str, str], launches: Sequence[Observation] = ()
) -> KernelProofs:
    """The answers to all properties of a kernel; kept on disk by its IR and the facts.

    Args:
        use: the kernel and its launches.
        given: conditions on sizes that the spec states, with the reasons.
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
    store = program_cache()
    texts = [str(fact) for fact in facts]
    scalars = [v.name for v in kernel.params if v not in kernel.buffer_map]
    seen = {n: max(abs(each.symbols.get(n, 0)) for each in use.observed) for n in scalars}
    like = [(each.symbols, {k: v.tolist() for k, v in each.tables.items()}) for each in launches]
    about = (use.text, "proofs", _own(), texts, unwritten, seen, use.bits, like)
    key = "" if store is None else content_key(*about)
    proofs = None if store is None else store.find(key, tuple)
    if proofs is None:
        questions = Questions(accesses, facts, seen, launches)
        proofs = tuple(_proofs(questions, tables, frozenset(unwritten), bits=use.bits))
        if store is not None:
            store.add(key, proofs)
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
            reason = "a block needs too much"
            words = fault.message
            proof = replace(
                proof, answer="refuted", reason=reason, case=case, arch=arch, finding=words
            )
        yield proof


def _proofs(
    questions: Questions,
    tables: list[ir.Buffer],
    unwritten: frozenset[str],
    *,
    bits: bool,
) -> Iterator[Proof]:
    accesses = questions.accesses
    for buffer in accesses.kernel.buffer_map.values():
        if _is_flag(accesses, buffer):
            continue
        written = bool(accesses.of(buffer, "write"))
        if written or (accesses.of(buffer, "atomic") and accesses.of(buffer, "read")):
            yield races(questions, buffer)
            if written and buffer.name in unwritten and not accesses.of(buffer, "read", "atomic"):
                yield coverage(questions, buffer)
        if bits and "float" in buffer.dtype and accesses.of(buffer, "atomic"):
            yield equal_bits(questions, buffer)
        proof = own_sequence(questions, buffer)
        if proof is not None:
            yield proof
    memory = [a for a in accesses.found if "barrier" not in a.buffer.scope]
    unguarded = {
        subject: [a for a in memory if a.buffer.scope.startswith(scope)]
        for subject, scope in _UNGUARDED.items()
    }
    data = {table.data for table in tables}
    unguarded["tables"] = [a for a in accesses.found if a.buffer.data in data]
    for subject, found in unguarded.items():
        if found:
            yield bounds(questions, subject, found)
    yield overflow(questions)
    yield grid(questions)
    if accesses.claims:
        yield assumptions(questions, accesses.claims)
    for barrier in {each.barrier.data: each.barrier for each in accesses.events}.values():
        yield from phases(questions, barrier)


def _is_flag(accesses: Accesses, buffer: ir.Buffer) -> bool:
    """Whether blocks order each other by a buffer: all its accesses are atomic, or of externs."""
    return buffer.dtype in _INTEGERS and all(
        a.kind == "atomic" or a.operation.startswith("call_") for a in accesses.of(buffer)
    )


@cache
def _own() -> str:
    """A hash of this package: other questions have other answers."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
