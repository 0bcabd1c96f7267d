"""Asks Z3 about the accesses of one kernel, with the facts of its launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations, product
from math import gcd
from typing import TYPE_CHECKING, Literal

import z3

from .answers import Values
from .facts import BLOCKS, Intervals, Offsets, symbols_of
from .terms import Terms

if TYPE_CHECKING:
    from tlmatrix.interpreter.analysis.accesses import Access, Accesses, Executed

    from .facts import Fact, Observation

MILLISECONDS = 3000
"""Of one query."""
_SIZES = (2, 3, 5, 9, 17, 33, 65, 130, 260, 520)
"""Bounds of all sizes of values that refute a property, the first that has some is used."""
_MOST_ELEMENTS = 128
"""Of an integer tensor of a launch that values are to be like."""
_ROUNDS = 4
"""Instances of facts may load elements that other facts are about."""


Kind = Literal["none", "some", "unknown"]
"""Of values that satisfy constraints: there are none, there are some, or Z3 does not know."""


@dataclass
class Questions:
    """Asks about one kernel.

    Attributes:
        accesses: the model of the kernel.
        facts: of its launches.
        seen: by scalar parameter, its largest value in a launch.
        launches: values that refute a property are sought among those like one of them.
        terms: the terms made so far.
    """

    accesses: Accesses
    facts: Sequence[Fact]
    seen: Mapping[str, int] = field(default_factory=dict)
    launches: Sequence[Observation] = ()
    terms: Terms = field(init=False)

    def __post_init__(self) -> None:
        """Have no terms."""
        self.fresh()

    def fresh(self) -> None:
        """Forget all terms: lemmas and facts are about those that a question needs."""
        model = self.accesses
        own: list[Executed] = [*model.found, *model.claims, *model.events]
        self.terms = Terms({r.var for each in own for r in each.ranges})

    def executed(self, what: Executed, block: str = "") -> list[z3.BoolRef]:
        """That a block makes an access, or what else its statement is."""
        tests = (self.terms.boolean(test, block) for test in what.path)
        return [*self.terms.bounds(what.ranges, block), *tests]

    def index(self, access: Access, block: str = "") -> list[z3.ArithRef]:
        """The element that a block accesses."""
        return [self.terms.integer(i, block) for i in access.index]

    def inside(self, access: Access, block: str = "") -> list[z3.BoolRef]:
        """That the element is one of the buffer."""
        pairs = zip(self.index(access, block), access.buffer.shape, strict=True)
        return [t for i, n in pairs for t in (i >= 0, i < self.terms.integer(n))]

    def ask(self, constraints: Iterable[z3.BoolRef]) -> tuple[Kind, list[Fact], Values | None]:
        """Whether any values satisfy constraints, the facts why none do, the smallest that do."""
        solver = z3.Solver()
        solver.set("timeout", MILLISECONDS)
        solver.add(*constraints)
        tracked: dict[tuple[int, int], Fact] = {}
        for _ in range(_ROUNDS):
            loads = list(self.terms.loads.values())
            for k, fact in enumerate(self.facts):
                for instance in fact.instances(self.terms, loads):
                    key = (k, instance.get_id())
                    if key not in tracked:
                        tracked[key] = fact
                        solver.assert_and_track(instance, str(key))
            if len(self.terms.loads) == len(loads):
                break
        for buffer in self.accesses.kernel.buffer_map.values():
            solver.add(*(self.terms.integer(extent) >= 0 for extent in buffer.shape))
        solver.add(*self.terms.lemmas())
        answer = solver.check()
        if answer == z3.unsat:
            core = set(map(str, solver.unsat_core()))
            return "none", [fact for key, fact in tracked.items() if str(key) in core], None
        return ("some", [], self._smallest(solver)) if answer == z3.sat else ("unknown", [], None)

    def _smallest(self, solver: z3.Solver) -> Values:
        """Values that satisfy constraints, with the smallest sizes that do in time."""
        model = solver.model()
        symbols = symbols_of(self.accesses.kernel)
        terms = {name: self.terms.variable(var) for name, var in symbols.items()}
        for most in _SIZES:
            answer = solver.check(*[term <= most for term in terms.values()])
            if answer == z3.sat:
                model = solver.model()
                break
        alike = next((found for each in self.launches if (found := self._like(solver, each))), None)
        model = alike or model
        tables: dict[str, dict[tuple[int, ...], int]] = {}
        for load in self.terms.loads.values():
            index = tuple(_number(model, i) for i in load.indices)
            if min(index) >= 0:
                tables.setdefault(load.buffer.name, {})[index] = _number(model, load.value)
        symbols_found = {name: _number(model, term) for name, term in terms.items()}
        pairs = {name: tuple(sorted(table.items())) for name, table in tables.items()}
        unknown = any(each.name().startswith("unknown.") for each in model.decls())
        return Values(symbols_found, pairs, alike is not None, unknown)

    def _like(self, solver: z3.Solver, launch: Observation) -> z3.ModelRef | None:
        """A model that differs from a launch in lengths alone, none of them longer; None if none.

        They are the steps of offsets, or a table of their own; tables that the launch's lengths
        may have been made of, or that were made of them, are kept so. Other integer tensors, and
        sizes, may have conditions that launches do not show: a kernel that reads one has no such
        launch.
        """
        terms, kernel = self.terms, self.accesses.kernel
        shown = launch.tables
        names = symbols_of(kernel).items()
        fixed = [terms.variable(var) == launch.symbols.get(name, -1) for name, var in names]
        whole = [f for f in self.facts if isinstance(f, Intervals) and f.whole]
        lengths = {f.lengths.table.name for f in whole}
        ended = {f.column.table.name for f in self.facts if isinstance(f, Offsets) and f.end}
        free = lengths | ended | {f.column.table.name for f in whole}
        steps: dict[str, tuple[list[int], list[z3.ArithRef]]] = {}
        for buffer in kernel.buffer_map.values():
            if buffer.data in self.accesses.constants and buffer.name in shown:
                values = shown[buffer.name].tolist()
                if shown[buffer.name].ndim != 1 or len(values) > _MOST_ELEMENTS:
                    return None
                elements = [terms.load(buffer, [z3.IntVal(k)]) for k in range(len(values))]
                if buffer.name not in lengths:
                    values = [b - a for a, b in pairwise(values)]
                    elements = [b - a for a, b in pairwise(elements)]
                steps[buffer.name] = values, elements
        tied: set[str] = set()
        for (name, made), (source, others) in permutations(steps.items(), 2):
            relation = list(_relations(*made, *others))
            fixed += relation
            tied |= {name} if relation and source in free else set()
        if not free or not steps.keys() <= free | tied:
            return None
        for name in (lengths | ended) & steps.keys():
            values, elements = steps[name]
            unit = gcd(*values)
            fixed += [each <= max(values) for each in elements]
            fixed += [each % unit == 0 for each in elements if unit > 1]
            fixed.append(z3.Sum(elements) == sum(values))
        known = list(terms.loads.values())
        fixed += [each for fact in self.facts for each in fact.instances(terms, known)]
        solver.push()
        solver.add(*fixed, *terms.lemmas())
        found = solver.model() if solver.check() == z3.sat else None
        solver.pop()
        return found


def _number(model: z3.ModelRef, term: z3.ArithRef) -> int:
    return int(model.eval(term, model_completion=True).as_long())


def _relations(
    values: list[int], steps: list[z3.ArithRef], theirs: list[int], others: list[z3.ArithRef]
) -> Iterator[z3.BoolRef]:
    """How a launch's steps follow from others: as counts of blocks, rounded up, or so many rows.

    A sequence may have one row more than its length. All that the launch agrees with is kept, and
    the sum, which may be the number of blocks.
    """
    pairs = list(zip(steps, others, strict=False))
    for block, more in product((1, *BLOCKS), (0, 1) if pairs else ()):
        counts = [-(-(n + more) // block) for n in theirs]
        for unit in {1, block}:
            if all(n == unit * m for n, m in zip(values, counts, strict=False)):
                rounded = [(other + (more + block - 1)) / z3.IntVal(block) for other in others]
                yield from (n == unit * m for n, m in zip(steps, rounded, strict=False))
                yield z3.Sum(rounded) == sum(counts)
