"""The properties that are proven of a kernel, each as questions that no values may satisfy."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import z3

from tlmatrix.interpreter.analysis.accesses import alike
from tlmatrix.interpreter.analysis.expressions import number
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same, text_of, walk
from tlmatrix.tracebacks import short_path

from .answers import Proof
from .facts import Intervals, Offsets, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.interpreter.analysis.accesses import Access, Claim, Range

    from .answers import Values
    from .facts import Fact
    from .solving import Questions, Result
    from .terms import Terms

_SMALLER_DIMS = (1 << 10, 1 << 8)
"""Largest dims for which a grid is proven to be launched, where it is not for larger ones."""
LARGEST_DIMS = (1 << 20, 1 << 15, 1 << 12)
"""Largest sizes for which int32 arithmetic is proven to fit; the first that holds is reported."""


@dataclass
class Asked:
    """Collects the results of the questions of one property."""

    name: str
    subject: str
    began: float = field(default_factory=time.monotonic)
    used: dict[Fact, None] = field(default_factory=dict)

    def failed(self, result: Result, reason: str, location: ir.Location | None) -> Proof | None:
        """The answer if a result is no proof."""
        self.used.update(dict.fromkeys(result.used))
        if result.kind == "none":
            return None
        if result.kind == "unknown":
            reason += " (not decided in time)"
        return self.unknown(reason, location, result.values)

    def unknown(
        self, reason: str, location: ir.Location | None, values: Values | None = None
    ) -> Proof:
        """No proof."""
        place = "" if location is None else str(location)
        seconds = time.monotonic() - self.began
        return Proof(
            self.name,
            self.subject,
            "unknown",
            reason=reason,
            place=place,
            values=values,
            seconds=seconds,
        )

    def proven(self) -> Proof:
        """A proof."""
        seconds = time.monotonic() - self.began
        facts = tuple(dict.fromkeys(str(fact) for fact in self.used))
        return Proof(self.name, self.subject, "proven", facts, seconds=seconds)


def _conflict(questions: Questions, a: Access, b: Access) -> list[z3.BoolRef]:
    """That two blocks access one element."""
    terms = questions.terms
    found = [*questions.executed(a, "1"), *questions.executed(b, "2")]
    if alike(a.buffer, b.buffer):
        pairs = zip(questions.index(a, "1"), questions.index(b, "2"), strict=True)
        found += [x == y for x, y in pairs]
        found += questions.inside(a, "1")
    found.append(_differ(terms, a.blocks, b.blocks))
    return found


def _differ(terms: Terms, some: Sequence[Range], others: Sequence[Range]) -> z3.BoolRef:
    """That variables have other values in the first access than in the second."""
    pairs = zip(some, others, strict=True)
    return z3.Or([terms.variable(r.var, "1") != terms.variable(s.var, "2") for r, s in pairs])


def races(questions: Questions, buffer: ir.Buffer) -> Proof:
    """No two blocks access one element of a buffer, one to write it, unless both are atomic."""
    asked = Asked("races", buffer.name)
    accesses = questions.accesses
    writes, atomics = accesses.of(buffer, "write"), accesses.of(buffer, "atomic")
    reads = accesses.of(buffer, "read")
    for k, a in enumerate([*writes, *atomics]):
        for b in [*writes[k:], *atomics, *reads] if k < len(writes) else reads:
            if a.grid != b.grid:
                continue  # grids of one function run one after another
            questions.fresh()
            result = questions.ask(_conflict(questions, a, b))
            reason = f"two blocks may {a.kind} and {b.kind} one element"
            if b.location != a.location and b.location is not None:
                reason += f", the second at {short_path(b.location.file)}:{b.location.line}"
            if (failed := asked.failed(result, reason, a.location)) is not None:
                return failed
    return asked.proven()


def equal_bits(questions: Questions, buffer: ir.Buffer) -> Proof:
    """No two blocks or threads add to one element: its bits do not depend on their order."""
    asked = Asked("equal bits", buffer.name)
    atomics = questions.accesses.of(buffer, "atomic")
    for k, a in enumerate(atomics):
        for b in atomics[k:]:
            if a.grid != b.grid:
                continue
            for parties, conflict in (("blocks", _conflict), ("threads of a block", _unordered)):
                questions.fresh()
                result = questions.ask(conflict(questions, a, b))
                reason = f"two {parties} may add to one element, in any order"
                if (failed := asked.failed(result, reason, a.location)) is not None:
                    return failed
    return asked.proven()


def _unordered(questions: Questions, a: Access, b: Access) -> list[z3.BoolRef]:
    """That two iterations that one block's threads share among them access one element.

    Loops over equal extents are shared alike: equal iterations belong to one thread.
    """
    terms = questions.terms
    found = [*questions.executed(a, "1"), *questions.executed(b, "2")]
    if alike(a.buffer, b.buffer):
        pairs = zip(questions.index(a, "1"), questions.index(b, "2"), strict=True)
        found += [x == y for x, y in pairs]
    found.append(z3.Not(_differ(terms, a.blocks, b.blocks)))
    some, others = _of_threads(a), _of_threads(b)
    if same(tuple(r.extent for r in some), tuple(r.extent for r in others)):
        found.append(_differ(terms, some, others))
    return found


def _of_threads(access: Access) -> tuple[Range, ...]:
    return tuple(r for r in access.ranges if r.kind in ("thread", "parallel", "tile"))


# A block stays in its own sequence ----------------------------------------------------------------


def own_sequence(questions: Questions, buffer: ir.Buffer) -> Proof | None:
    """A block writes rows of a packed tensor only of the sequence whose offsets it loads.

    None if no dim of the buffer is packed, or if no write loads offsets. Where several facts could
    say which rows a sequence has, one of them must hold.
    """
    asked = Asked("own sequence", buffer.name)
    failed, found = None, False
    for fact, dim in _packed(questions, buffer):
        failed, owned = None, False
        other: Access | None = None
        for access in questions.accesses.of(buffer, "write", "atomic"):
            owner = _owner(access, fact)
            if owner is None:
                other = access
                continue
            owned = True
            if not alike(access.buffer, buffer):
                reason = f"{access.buffer.name} is a view of another shape"
                failed = asked.unknown(reason, access.location)
                break
            questions.fresh()
            terms = questions.terms
            row = questions.index(access)[dim]
            start, end = rows_of(terms, fact, terms.integer(owner))
            outside = z3.Or(row < start, row >= end)
            constraints = [*questions.executed(access), *questions.inside(access), outside]
            reason = f"a block may write rows outside of sequence {text_of(owner)}"
            failed = asked.failed(questions.ask(constraints), reason, access.location)
            if failed is not None:
                break
        if owned and failed is None and other is not None:
            reason = "a block may write rows that are not counted from a sequence"
            failed = asked.unknown(reason, other.location)
        found |= owned
        if owned and failed is None:
            return asked.proven()
    return failed if found else None


def _packed(questions: Questions, buffer: ir.Buffer) -> Iterator[tuple[Fact, int]]:
    """The dims of a buffer whose rows belong to sequences, with the fact that says so."""
    for dim, extent in enumerate(buffer.shape):
        for fact in questions.facts:
            if not isinstance(fact, (Offsets, Intervals)) or fact.end is None:
                continue
            if isinstance(fact, Intervals) and not fact.disjoint:
                continue
            if same(fact.end, extent):
                yield fact, dim


def _owner(access: Access, fact: Fact) -> ir.Expr | None:
    """The sequence of a block: the index of the start that its rows are counted from."""
    assert isinstance(fact, (Offsets, Intervals))
    for node in walk(*access.index):
        if not isinstance(node, ir.BufferLoad) or node.buffer.data is not fact.table.data:
            continue
        if isinstance(fact, Offsets) or number(node.indices[1]) == fact.start:
            return node.indices[0]
    return None


# Bounds, overflow, assumptions --------------------------------------------------------------------


def bounds(questions: Questions, subject: str, accesses: Sequence[Access]) -> Proof:
    """Accesses of memory that TileLang does not guard are inside it."""
    asked = Asked("bounds", subject)
    done: list[tuple[Access, list[ir.Expr]]] = []
    for access in accesses:
        questions.fresh()
        terms = questions.terms
        outside = []
        parts: list[ir.Expr] = []
        for (start, extent), size in zip(access.box, access.buffer.shape, strict=True):
            numbers = [number(each) for each in (start, extent, size)]
            if None not in numbers and 0 <= numbers[0] <= numbers[2] - numbers[1]:
                continue
            parts += [start, extent]
            first, count, whole = (terms.integer(each) for each in (start, extent, size))
            outside += [first < 0, first + count > whole]
        if not outside or any(_repeated(access, parts, other) for other in done):
            continue
        done.append((access, parts))
        result = questions.ask([*questions.executed(access), z3.Or(outside)])
        reason = f"{access.buffer.name} may be accessed outside of its shape"
        if (failed := asked.failed(result, reason, access.location)) is not None:
            return failed
    return asked.proven()


def _repeated(access: Access, parts: list[ir.Expr], other: tuple[Access, list[ir.Expr]]) -> bool:
    earlier, before = other
    return (
        earlier.buffer.data is access.buffer.data
        and earlier.path == access.path
        and len(parts) == len(before)
        and all(map(same, parts, before))
    )


def overflow(questions: Questions) -> Proof:
    """Index arithmetic of int32 stays in its range, for dims up to one of `LARGEST_DIMS`."""
    return _for_sizes(LARGEST_DIMS, "overflow", "int32", partial(_overflows, questions))


def _for_sizes(
    largest: Sequence[int], name: str, subject: str, ask: Callable[[Asked, int], Proof | None]
) -> Proof:
    """The answer for sizes up to the first of some bounds for which there is a proof."""
    failed = None
    for most in largest:
        asked = Asked(name, f"{subject}, sizes to {most}")
        failed = ask(asked, most)
        if failed is None:
            return asked.proven()
    assert failed is not None
    return failed


def grid(questions: Questions) -> Proof:
    """CUDA launches the grid: at most 65,535 blocks along y and z, for dims as in `overflow`."""
    largest = (*LARGEST_DIMS, *_SMALLER_DIMS)
    return _for_sizes(largest, "grid", "blocks", partial(_too_many_blocks, questions))


def _too_many_blocks(questions: Questions, asked: Asked, most: int) -> Proof | None:
    axes: dict[ir.Var, tuple[Range, Access]] = {}
    for access in questions.accesses.found:
        for each in access.blocks:
            axes.setdefault(each.var, (each, access))
    for axis, access in axes.values():
        limit = (1 << 31) - 1 if axis.why.endswith("x") else 65535
        if axis.extent is None or number(axis.extent) is not None:
            continue
        questions.fresh()
        above = questions.terms.integer(axis.extent) > limit
        result = questions.ask([above, *_largest(questions, most)])
        reason = f"there may be more than {limit} blocks along {axis.why[-1]}"
        if (failed := asked.failed(result, reason, access.location)) is not None:
            return failed
    return None


def _overflows(questions: Questions, asked: Asked, most: int) -> Proof | None:
    done: set[ir.Expr] = set()
    for access in questions.accesses.found:
        for ranges, computed in _computed(access):
            nodes = [node for node in walk(*computed) if _may_leave(node) and node not in done]
            done.update(nodes)
            if not nodes:
                continue
            questions.fresh()
            terms = questions.terms
            outside = []
            for node in nodes:
                value = terms.integer(node)
                outside += [value < -(1 << 31), value >= 1 << 31]
            constraints = [*terms.bounds(ranges), z3.Or(outside)]
            result = questions.ask([*constraints, *_largest(questions, most)])
            reason = "int32 arithmetic may leave its range"
            if (failed := asked.failed(result, reason, access.location)) is not None:
                return failed
    return None


def _computed(access: Access) -> Iterator[tuple[tuple[Range, ...], list[ir.Expr]]]:
    """What an access computes, with the variables that have their values by then."""
    for k, each in enumerate(access.ranges):
        if each.extent is not None:
            yield access.ranges[:k], [each.low, each.extent]
    yield access.ranges, [*access.index, *access.path]


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
    terms = questions.terms
    for buffer in questions.accesses.kernel.buffer_map.values():
        for extent in buffer.shape:
            if number(extent) is None:
                yield terms.integer(extent) <= most
    for var in questions.accesses.kernel.params:
        if var not in questions.accesses.kernel.buffer_map and var.dtype == "int32":
            seen = questions.seen.get(var.name, 0)
            yield terms.variable(var) <= max(most, seen)
            yield terms.variable(var) >= -max(most, seen)
    for load in list(terms.loads.values()):
        yield load.value <= most
        yield load.value >= -most
    yield from terms.limits()


def assumptions(questions: Questions, claims: Sequence[Claim]) -> Proof:
    """What the kernel lets the compiler assume (`T.assume`) holds."""
    asked = Asked("assumptions", "T.assume")
    for claim in claims:
        questions.fresh()
        broken = z3.Not(questions.terms.boolean(claim.condition))
        constraints = [*questions.executed(claim), broken]
        reason = f"T.assume({text_of(claim.condition)}) may not hold"
        failed = asked.failed(questions.ask(constraints), reason, claim.location)
        if failed is not None:
            return failed
    return asked.proven()
