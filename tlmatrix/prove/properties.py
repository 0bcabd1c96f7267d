"""The properties that are proven of a kernel, each as questions that no values may satisfy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any

import z3

from tlmatrix.interpreter.analysis.accesses import alike
from tlmatrix.interpreter.analysis.expressions import number
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same, text_of, walk
from tlmatrix.tracebacks import short_path

from .answers import Proof
from .facts import Intervals, Offsets

if TYPE_CHECKING:
    from tlmatrix.interpreter.analysis.accesses import Access, Claim, Range

    from .solving import Questions
    from .terms import Terms


LARGEST_DIMS = (1 << 20, 1 << 15, 1 << 12)
"""Largest sizes for which int32 arithmetic is proven to fit; the first that holds is reported."""
LARGEST_GRIDS = (*LARGEST_DIMS, 1 << 10, 1 << 8)
"""Largest sizes for which a grid is proven to be launched."""


Question = tuple["Sequence[z3.BoolRef] | None", str, "ir.Location | None"]
"""Constraints that no values may satisfy, what it means if some do, and the user's line.

Without constraints nothing can be asked.
"""


def answered(
    questions: Questions,
    name: str,
    subject: str,
    asked: Iterable[Question],
    used: Iterable[Any] = (),
) -> Proof:
    """The answer to a property: unknown from the first question that has values.

    `used` are facts that the questions rest on.
    """
    facts = dict.fromkeys(map(str, used))
    for constraints, reason, location in asked:
        place = "" if location is None else str(location)
        if constraints is None:
            return Proof(name, subject, "unknown", (), reason, place)
        kind, needed, values = questions.ask(constraints)
        facts.update(dict.fromkeys(map(str, needed)))
        if kind != "none":
            late = " (not decided in time)" if kind == "unknown" else ""
            return Proof(name, subject, "unknown", (), reason + late, place, values)
    return Proof(name, subject, "proven", tuple(facts))


def _one_element(questions: Questions, a: Access, b: Access) -> list[z3.BoolRef]:
    """That two blocks, which may be the same, access one element."""
    found = [*questions.executed(a, "1"), *questions.executed(b, "2")]
    if alike(a.buffer, b.buffer):
        pairs = zip(questions.index(a, "1"), questions.index(b, "2"), strict=True)
        found += [x == y for x, y in pairs]
        found += questions.inside(a, "1")
    return found


def _differ(terms: Terms, some: Sequence[Range], others: Sequence[Range]) -> z3.BoolRef:
    """That variables have other values in the first access than in the second."""
    pairs = zip(some, others, strict=True)
    return z3.Or([terms.variable(r.var, "1") != terms.variable(s.var, "2") for r, s in pairs])


def races(questions: Questions, buffer: ir.Buffer) -> Iterator[Question]:
    """No two blocks access one element of a buffer, one to write it, unless both are atomic."""
    accesses = questions.accesses
    writes, atomics = accesses.of(buffer, "write"), accesses.of(buffer, "atomic")
    reads = accesses.of(buffer, "read")
    pairs = [*combinations_with_replacement(writes, 2), *product(writes, [*atomics, *reads])]
    for a, b in (*pairs, *product(atomics, reads)):
        if a.grid != b.grid:
            continue  # grids of one function run one after another
        questions.fresh()
        found = _one_element(questions, a, b)
        found.append(_differ(questions.terms, a.blocks, b.blocks))
        reason = f"two blocks may {a.kind} and {b.kind} one element"
        if b.location != a.location and b.location is not None:
            reason += f", the second at {short_path(b.location.file)}:{b.location.line}"
        yield found, reason, a.location


def equal_bits(questions: Questions, buffer: ir.Buffer) -> Iterator[Question]:
    """No two blocks or threads add to one element: its bits do not depend on their order.

    Loops over equal extents are shared alike among threads: equal iterations belong to one thread.
    """
    for a, b in combinations_with_replacement(questions.accesses.of(buffer, "atomic"), 2):
        if a.grid != b.grid:
            continue
        kinds = ("thread", "parallel", "tile")
        some, others = (tuple(r for r in each.ranges if r.kind in kinds) for each in (a, b))
        shared = same(tuple(r.extent for r in some), tuple(r.extent for r in others))
        for parties in ("blocks", "threads of a block"):
            questions.fresh()
            found = _one_element(questions, a, b)
            apart = _differ(questions.terms, a.blocks, b.blocks)
            if parties != "blocks":
                apart = z3.Not(apart)
                found += [_differ(questions.terms, some, others)] if shared else []
            reason = f"two {parties} may add to one element, in any order"
            yield [*found, apart], reason, a.location


# A block stays in its own sequence ----------------------------------------------------------------


def own_sequence(questions: Questions, buffer: ir.Buffer) -> Proof | None:
    """A block writes rows of a packed tensor only of the sequence whose offsets it loads.

    None if no dim of the buffer is packed, or if no write loads offsets. Where several facts could
    say which rows a sequence has, one of them must hold.
    """
    facts = [f for f in questions.facts if isinstance(f, (Offsets, Intervals)) and f.disjoint]
    proof = None
    for (dim, extent), fact in product(enumerate(buffer.shape), facts):
        writes = [(w, _owner(w, fact)) for w in questions.accesses.of(buffer, "write", "atomic")]
        if same(fact.end, extent) and any(owner is not None for _, owner in writes):
            counted = ((w, owner if alike(w.buffer, buffer) else None) for w, owner in writes)
            outside = (_outside(questions, dim, fact, *each) for each in counted)
            proof = answered(questions, "own sequence", buffer.name, outside)
            if proof.answer == "proven":
                return proof
    return proof


def _outside(
    questions: Questions, dim: int, fact: Offsets | Intervals, access: Access, owner: ir.Expr | None
) -> Question:
    """That an access is of rows outside of the block's sequence, which is `owner`."""
    if owner is None:
        reason = "a block may write rows that are not counted from a sequence"
        return None, reason, access.location
    questions.fresh()
    start, end = fact.rows(questions.terms, questions.terms.integer(owner))
    row = questions.index(access)[dim]
    found = [*questions.executed(access), *questions.inside(access)]
    reason = f"a block may write rows outside of sequence {text_of(owner)}"
    return [*found, z3.Or(row < start, row >= end)], reason, access.location


def _owner(access: Access, fact: Offsets | Intervals) -> ir.Expr | None:
    """The sequence of a block: the index of the start that its rows are counted from."""
    loads = (node for node in walk(*access.index) if isinstance(node, ir.BufferLoad))
    return next((row for load in loads if (row := fact.column.row(load)) is not None), None)


# Bounds, overflow, assumptions --------------------------------------------------------------------


def bounds(questions: Questions, accesses: Sequence[Access]) -> Iterator[Question]:
    """Accesses of memory that TileLang does not guard are inside it."""
    done: list[tuple[ir.Expr, ...]] = []
    for access in accesses:
        questions.fresh()
        outside: list[z3.BoolRef] = []
        parts = access.path
        for (start, extent), size in zip(access.box, access.buffer.shape, strict=True):
            numbers = [number(each) for each in (start, extent, size)]
            if None in numbers or not 0 <= numbers[0] <= numbers[2] - numbers[1]:
                parts += (start, extent, size)
                first, count, whole = (questions.terms.integer(each) for each in parts[-3:])
                outside += [first < 0, first + count > whole]
        if outside and not any(same(parts, each) for each in done):
            done.append(parts)
            reason = f"{access.buffer.name} may be accessed outside of its shape"
            yield [*questions.executed(access), z3.Or(outside)], reason, access.location


def for_sizes(
    questions: Questions,
    name: str,
    subject: str,
    ask: Callable[[Questions, int], Iterator[Question]],
    largest: Sequence[int] = LARGEST_DIMS,
) -> Proof:
    """The answer for sizes up to the first of some bounds for which there is a proof."""
    for most in largest:
        proof = answered(questions, name, f"{subject}, sizes to {most}", ask(questions, most))
        if proof.answer == "proven":
            break
    return proof


def grid(questions: Questions, most: int) -> Iterator[Question]:
    """CUDA launches the grid: at most 65,535 blocks along y and z, for sizes up to `most`."""
    axes = {axis: access for access in questions.accesses.found for axis in access.blocks}
    for axis, access in axes.items():
        limit = (1 << 31) - 1 if axis.axis.endswith("x") else 65535
        if axis.extent is None or number(axis.extent) is not None:
            continue
        questions.fresh()
        above = questions.terms.integer(axis.extent) > limit
        reason = f"there may be more than {limit} blocks along {axis.axis[-1]}"
        yield [above, *_largest(questions, most)], reason, access.location


def overflow(questions: Questions, most: int) -> Iterator[Question]:
    """Index arithmetic of int32 stays in its range, for sizes up to `most`."""
    done: set[ir.Expr] = set()
    for access in questions.accesses.found:
        # What it computes, with the variables that have their values by then.
        bounds_of = [
            (access.ranges[:k], [each.low, each.extent])
            for k, each in enumerate(access.ranges)
            if each.extent is not None
        ]
        for ranges, computed in [*bounds_of, (access.ranges, [*access.index, *access.path])]:
            nodes = [node for node in walk(*computed) if _may_leave(node) and node not in done]
            done.update(nodes)
            if not nodes:
                continue
            questions.fresh()
            terms = questions.terms
            values = [terms.integer(node) for node in nodes]
            outside = z3.Or([z3.Or(v < -(1 << 31), v >= 1 << 31) for v in values])
            found = [*terms.bounds(ranges), outside, *_largest(questions, most)]
            yield found, "int32 arithmetic may leave its range", access.location


def _may_leave(node: object) -> bool:
    """Whether the value of a node may be outside of int32, which it has."""
    if not isinstance(node, ir.Expr) or node.dtype != "int32":
        return False
    if isinstance(node, ir.IntImm):
        return not -(1 << 31) <= node.value < 1 << 31
    return isinstance(node, (ir.Add, ir.Sub, ir.Mul, ir.Cast))


def _largest(questions: Questions, most: int) -> Iterator[z3.BoolRef]:
    """That sizes and elements of integer tensors are at most `most`, and what follows.

    A scalar that had a larger value in a launch may have any value up to that.
    """
    terms, kernel = questions.terms, questions.accesses.kernel
    for extent in (extent for buffer in kernel.buffer_map.values() for extent in buffer.shape):
        if number(extent) is None:
            yield terms.integer(extent) <= most
    for var in kernel.params:
        if var not in kernel.buffer_map and var.dtype == "int32":
            limit = max(most, questions.seen.get(var.name, 0))
            yield terms.variable(var) <= limit
            yield terms.variable(var) >= -limit
    for load in list(terms.loads.values()):
        yield load.value <= most
        yield load.value >= -most
    yield from terms.limits()


def assumptions(questions: Questions, claims: Sequence[Claim]) -> Iterator[Question]:
    """What the kernel lets the compiler assume (`T.assume`) holds."""
    for claim in claims:
        questions.fresh()
        broken = z3.Not(questions.terms.boolean(claim.condition))
        reason = f"T.assume({text_of(claim.condition)}) may not hold"
        yield [*questions.executed(claim), broken], reason, claim.location
