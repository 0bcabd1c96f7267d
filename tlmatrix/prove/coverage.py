"""Every element of an output is written: a witness is solved for, instead of a quantifier.

For an element, each write of the kernel gives candidates: values of its variables (block, thread,
iterations, element of the tile) with which it would write that element. The index equations are
solved for variables with a constant factor; a block's sequence is the one that the element's row
lies in; quotients and remainders of one value are solved together; what is left takes the bounds
of the conditions on it (Cooper's elimination tries no other values). If the element with none of
the candidates written is impossible, every element is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice, pairwise, product
from typing import TYPE_CHECKING

import z3

from tlmatrix.interpreter.analysis.accesses import alike
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same, walk

from .facts import Intervals
from .properties import answered
from .terms import Polynomial, subterms

if TYPE_CHECKING:
    from tlmatrix.interpreter.analysis.accesses import Access, Range

    from .answers import Proof
    from .properties import Question
    from .solving import Questions

_MOST_BOUNDS = 24
"""Values tried for one variable that no equation determines."""
_MOST_LEFT = 2
"""Variables of one write that no equation determines."""
_MOST_CANDIDATES = 96
"""Of one access."""
_QUOTIENTS = ("quotient", "div")
_REMAINDERS = ("remainder", "mod")

Solution = dict[ir.Var, z3.ArithRef]
Pair = tuple[z3.ArithRef, z3.ArithRef]
"""A term, and its value."""


def coverage(questions: Questions, buffer: ir.Buffer) -> Proof:
    """Every element of a buffer is written by a block."""
    for near in (True, False):
        questions.fresh()
        question, used = _uncovered(questions, buffer, near=near)
        proof = answered(questions, "coverage", buffer.name, [question], used)
        if proof.answer == "proven":
            break
    return proof


def _uncovered(
    questions: Questions, buffer: ir.Buffer, *, near: bool
) -> tuple[Question, list[Intervals]]:
    """That no candidate writes an element, and the facts by which there are candidates.

    With `near` only bounds that the element sets count.
    """
    used: list[Intervals] = []
    terms = questions.terms
    element = [z3.Int(f"element {d}") for d in range(len(buffer.shape))]
    constraints = []
    for at, extent in zip(element, buffer.shape, strict=True):
        constraints += [at >= 0, at < terms.integer(extent)]
    owners: list[tuple[ir.Var, z3.ArithRef]] = []
    for fact in questions.facts:
        if not isinstance(fact, Intervals) or not fact.whole:
            continue
        for dim, (at, extent) in enumerate(zip(element, buffer.shape, strict=True)):
            if same(fact.end, extent):
                # Every index of the dim is in an interval of the table.
                row = z3.Int(f"interval.{dim}.{len(owners)}")
                start, end = fact.rows(terms, row)
                count = terms.integer(fact.column.table.shape[0])
                constraints += [row >= 0, row < count, start <= at, at < end]
                owners.append((fact.column.table.data, row))
                used.append(fact)
    location = None
    witnesses = []
    for number, access in enumerate(questions.accesses.of(buffer, "write")):
        location = access.location
        if not access.certain or not alike(access.buffer, buffer):
            continue
        solver = _Solver(questions, access, element, owners, near)
        for k, solution in enumerate(islice(solver.solutions(), _MOST_CANDIDATES)):
            block = f"{number}.{k}"
            for var, value in solution.items():
                terms.bind(var, value, block)
            body = [*questions.executed(access, block)]
            pairs = zip(questions.index(access, block), element, strict=True)
            body += [index == at for index, at in pairs]
            witnesses.append(z3.And(body))
        constraints += solver.exists
    if not witnesses:
        return (None, "no write was solved for its block", location), used
    constraints += [z3.Not(each) for each in witnesses]
    return (constraints, "an element may be written by no block", location), used


@dataclass
class _Solver:
    """Solves one write for the variables with which it writes an element.

    Attributes:
        owners: by table of intervals, the row that holds the element.
        near: whether only bounds that the element sets count.
        exists: what is known of the values in solutions.
    """

    questions: Questions
    access: Access
    element: list[z3.ArithRef]
    owners: list[tuple[ir.Var, z3.ArithRef]]
    near: bool
    exists: list[z3.BoolRef] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the variables to solve for."""
        self._terms, access = self.questions.terms, self.access
        # Others may be anything that their bounds allow, such as the thread.
        used = {n for n in walk(*access.index, *access.path) if isinstance(n, ir.Var)}
        self._fixed: Solution = {}
        self._ranges: dict[z3.ArithRef, Range] = {}
        for each in reversed(access.ranges):
            if each.var in used:
                used.update(n for n in walk(each.low, each.extent) if isinstance(n, ir.Var))
                if each.var.dtype != "bool":
                    self._ranges[self._terms.variable(each.var)] = each
            elif each.extent is not None:
                self._fixed[each.var] = self._terms.integer(each.low)
        self._inverses: set[int] = set()

    def solutions(self) -> Iterator[Solution]:
        """Candidates; each gives every variable of the write a value."""
        # The sequences of blocks are those that the element lies in.
        options: dict[int, list[Pair]] = {}
        for index, at in zip(self.access.index, self.element, strict=True):
            for sequence, pair in self._sequences(index, at):
                options.setdefault(sequence.get_id(), []).append(pair)
        for owned in product(*options.values()):
            known: list[Pair] = list(owned)
            self._solve_equations(known)
            left = self._free(known)
            if len(left) > _MOST_LEFT:
                continue
            for complete in self._eliminated(known, left):
                solved = self._ranges.items()
                yield self._fixed | {r.var: self._substituted(v, complete) for v, r in solved}

    def _sequences(self, index: ir.Expr, at: z3.ArithRef) -> Iterator[tuple[z3.ArithRef, Pair]]:
        """Variables of which the start of a sequence depends, with the value for an element."""
        for node in walk(index):
            if isinstance(node, ir.BufferLoad):
                first = self._terms.integer(node.indices[0])
                for table, row in self.owners:
                    if table is node.buffer.data and first in self._ranges:
                        yield first, (first, row)
        atoms = list(self._terms.atoms(self._terms.polynomial(index)))
        for var, each in self._ranges.items():
            own = [
                (a, c)
                for a, c in atoms
                if _occurs(var, a)
                and not any(_occurs(other, a) for other in self._ranges if other is not var)
            ]
            indices = [i for a, _ in own for i in self._terms.indices_in(a)]
            if each.extent is None or not indices:
                continue
            start = z3.Sum([a * c for a, c in own])
            # Rows that are counted from the end of a sequence start at the next one's offset.
            ends = not any(index.eq(var) for index in indices)
            yield var, (var, self._between(start, var, each, at, before=int(ends)))

    def _between(
        self, start: z3.ArithRef, var: z3.ArithRef, each: Range, at: z3.ArithRef, *, before: int
    ) -> z3.ArithRef:
        """A value of `var` with `start(var - before) <= at < start(var - before + 1)`.

        There is one if `start` is at most `at` for the first value and above it after the last,
        whatever the function `start` is.
        """
        found = z3.FreshInt("sequence")
        low = self._terms.integer(each.low)
        end = low + self._terms.integer(each.extent)  # type: ignore[arg-type] # not None
        starts = [
            self._terms.replaced(start, [(var, value - before)])
            for value in (low, end, found, found + 1)
        ]
        first, last, here, following = starts
        self.exists.append(
            z3.Implies(
                z3.And(low <= end, first <= at, at < last),
                z3.And(here <= at, at < following, found >= low, found < end),
            )
        )
        return found

    # Equations -----------------------------------------------------------------------------

    def _solve_equations(self, known: list[Pair]) -> None:
        """Add what the index equations determine."""
        self._inverses.clear()
        equations = [
            (self._terms.integer(i), at)
            for i, at in zip(self.access.index, self.element, strict=True)
        ]
        for _ in range(4 * len(equations) + 4):
            for k, (left, right) in enumerate(equations):
                found = self._solve(self._applied(left, known), self._applied(right, known), known)
                if found:
                    known += found
                    del equations[k]
                    break
            else:
                if not self._inverted(known, equations):
                    return

    def _solve(self, left: Polynomial, right: Polynomial, known: list[Pair]) -> list[Pair]:
        """The unknowns of `left == right`, if they are determined."""
        atoms = [(a, c) for a, c in self._terms.atoms(left) if self._has_free(a, known)]
        if not atoms:
            return []
        whole = rest = right.plus(left, -1)
        for atom, count in atoms:
            rest = rest.plus(self._terms.parsed(atom), count)
        found = []
        for unknown, factor in self._digits(atoms, known):
            found.append((unknown, self._terms.term(self._terms.divided(rest, factor))))
            rest = self._terms.divided(rest, factor, rest=True)
        if found:
            return found
        # An element of a tile takes what the rest, still unknown, leaves.
        plain = [(a, c) for a, c in atoms if self._is_unknown(a) and abs(c) == 1]
        for atom, count in reversed(plain):
            if not any(_occurs(atom, a) for a, _ in atoms if a is not atom):
                value = whole.plus(self._terms.parsed(atom), count)
                return [(atom, self._terms.term(Polynomial({}).plus(value, count)))]
        return []

    def _digits(
        self, atoms: Sequence[tuple[z3.ArithRef, int]], known: list[Pair]
    ) -> list[tuple[z3.ArithRef, Polynomial]]:
        """The unknowns of a sum with their factors, if all but the first are digits.

        A digit is below what the factor before it leaves. Factors are numbers, or sizes: a
        persistent block strides over its tiles, `block + iteration * blocks`.
        """
        found: list[tuple[z3.ArithRef, Polynomial]] = []
        for atom, count in atoms:
            parts = atom.children() if _is(atom, ("product",)) else [atom]
            free = [part for part in parts if self._has_free(part, known)]
            if count < 0 or len(free) != 1 or not self._is_unknown(free[0]):
                return []
            others = (self._terms.parsed(part) for part in parts if part is not free[0])
            found.append((free[0], reduce(Polynomial.times, others, Polynomial({(): count}))))
        found.sort(key=lambda each: (each[1].constant is not None, -(each[1].constant or 0)))
        for (_, larger), (atom, factor) in pairwise(found):
            size = self._extent(atom)
            unused = None if size is None else larger.plus(size.times(factor), -1).constant
            if unused is None or unused < 0:
                return []
        return found

    def _extent(self, atom: z3.ArithRef) -> Polynomial | None:
        """An upper bound of an unknown that starts at 0."""
        each = self._ranges.get(atom)
        if each is not None:
            if each.extent is None or self._terms.polynomial(each.low).constant != 0:
                return None
            return self._terms.polynomial(each.extent)
        return self._terms.parsed(atom.children()[1]) if _is(atom, _REMAINDERS) else None

    def _inverted(self, known: list[Pair], equations: list[Pair]) -> bool:
        """From a quotient and a remainder that are known, an equation for what was divided."""
        parts = {
            tuple(c.get_id() for c in a.children()): v for a, v in known if _is(a, _REMAINDERS)
        }
        for atom, value in known:
            rest = parts.get(tuple(c.get_id() for c in atom.children()))
            if not _is(atom, _QUOTIENTS) or rest is None or atom.get_id() in self._inverses:
                continue
            dividend, divisor = atom.children()
            if self._has_free(dividend, known):
                self._inverses.add(atom.get_id())
                product = self._applied(divisor, known).times(self._terms.parsed(value))
                whole = product.plus(self._terms.parsed(rest))
                equations.append((dividend, self._terms.term(whole)))
                return True
        return False

    # What no equation determines -----------------------------------------------------------

    def _eliminated(self, known: list[Pair], left: list[z3.ArithRef]) -> Iterator[list[Pair]]:
        """Complete a solution by bounds of the variables that are left."""
        if not left:
            yield known
            return
        var, *others = left
        for value in self._bounds(var, self.questions.executed(self.access), known):
            yield from self._eliminated([*known, (var, value)], others)

    def _bounds(
        self, var: z3.ArithRef, tests: Sequence[z3.BoolRef], known: list[Pair]
    ) -> list[z3.ArithRef]:
        """Values at which some condition on a variable begins or ceases to hold."""
        kinds = (z3.Z3_OP_LE, z3.Z3_OP_LT, z3.Z3_OP_GE, z3.Z3_OP_GT, z3.Z3_OP_EQ)
        nodes = (node for test in tests for node in subterms(test))
        compared = (node.children() for node in nodes if node.decl().kind() in kinds)
        forms = [
            form
            for left, right in compared
            if z3.is_int(left)
            for form in _without_choices(self._substituted(left - right, known), var)
        ]
        near = [form for form in forms if any(_occurs(at, form) for at in self.element)]
        found = self._limits(var, near) if self.near else {}
        found = found or self._limits(var, forms) or {0: z3.IntVal(0)}
        return list(found.values())[:_MOST_BOUNDS]

    def _limits(self, var: z3.ArithRef, forms: Iterable[z3.ArithRef]) -> dict[int, z3.ArithRef]:
        """Where forms that are linear in a variable change their sign, and one to either side."""
        found: dict[int, z3.ArithRef] = {}
        for form in forms:
            linear = self._terms.parsed(form)
            atoms = dict(self._terms.atoms(linear))
            factor = atoms.pop(var, 0)
            if not factor or any(_occurs(var, atom) for atom in atoms):
                continue
            rest = linear.plus(self._terms.of_term(var), -factor)
            rest = Polynomial({}).plus(rest, -1 if factor > 0 else 1)
            ratio = self._terms.divided(rest, Polynomial({(): abs(factor)}))
            for more in (0, 1, -1):
                term = self._terms.term(ratio.plus(Polynomial({(): more})))
                found.setdefault(term.get_id(), term)
        return found

    # Substitution --------------------------------------------------------------------------

    def _substituted(self, term: z3.ArithRef, known: list[Pair]) -> z3.ArithRef:
        for _ in range(4):
            changed = self._terms.replaced(term, known)
            if changed.eq(term):
                break
            term = changed
        return term

    def _applied(self, term: z3.ArithRef, known: list[Pair]) -> Polynomial:
        return self._terms.parsed(self._substituted(term, known))

    def _free(self, known: list[Pair]) -> list[z3.ArithRef]:
        """Variables without a value that the access depends on."""
        given = {atom.get_id() for atom, _ in known}
        return [v for v in self._ranges if v.get_id() not in given]

    def _has_free(self, term: z3.ArithRef, known: list[Pair]) -> bool:
        free = {v.get_id() for v in self._free(known)}
        return any(each.get_id() in free for each in subterms(term))

    def _is_unknown(self, atom: z3.ArithRef) -> bool:
        """Whether an atom can be solved for: a variable, a quotient or a remainder."""
        return atom in self._ranges or _is(atom, (*_QUOTIENTS, *_REMAINDERS))


def _is(term: z3.ExprRef, names: Sequence[str]) -> bool:
    """Whether a term is an operation of one of the names, of two operands."""
    return term.decl().name() in names and term.num_args() == 2


def _occurs(var: z3.ExprRef, term: z3.ExprRef) -> bool:
    return any(each.eq(var) for each in subterms(term))


def _without_choices(term: z3.ArithRef, var: z3.ArithRef, depth: int = 3) -> Iterator[z3.ArithRef]:
    """A term with each choice that depends on a variable made either way."""
    choice = next(
        (
            each
            for each in subterms(term)
            if z3.is_int(each) and each.decl().kind() == z3.Z3_OP_ITE and _occurs(var, each)
        ),
        None,
    )
    if choice is None or depth == 0:
        yield term
        return
    for option in choice.children()[1:]:
        yield from _without_choices(z3.substitute(term, (choice, option)), var, depth - 1)
