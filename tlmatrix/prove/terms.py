"""Terms of Z3 for expressions of the access model.

Integers are mathematical: whether they fit their dtype is a property of its own. Products of
variables, and divisions by them, are functions that Z3 knows nothing of but the lemmas here: so
every query is linear arithmetic with uninterpreted functions, which Z3 decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import combinations, islice
from typing import TYPE_CHECKING

import z3

from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from tlmatrix.interpreter.analysis.accesses import Range

z3.z3.Z3_DEBUG = False  # it checks each argument of each term, which takes a third of the time

_Monomial = tuple[int, ...]
"""Numbers of the atoms that are multiplied; () is the constant."""
_MOST_PAIRS = 400
"""Pairs of products that lemmas compare."""

_COMPARED = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True)
class Load:
    """An element of a tensor that the kernel only reads: a value of an uninterpreted function."""

    buffer: ir.Buffer
    indices: tuple[z3.ArithRef, ...]
    value: z3.ArithRef


class Polynomial:
    """A sum of products of atoms."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}

    def plus(self, other: Polynomial, factor: int = 1) -> Polynomial:
        """`self + factor * other`."""
        found = dict(self.terms)
        for monomial, count in other.terms.items():
            found[monomial] = found.get(monomial, 0) + factor * count
        return Polynomial(found)

    def times(self, other: Polynomial) -> Polynomial:
        """The product."""
        found: dict[_Monomial, int] = {}
        for a, x in self.terms.items():
            for b, y in other.terms.items():
                monomial = tuple(sorted((*a, *b)))
                found[monomial] = found.get(monomial, 0) + x * y
        return Polynomial(found)

    @property
    def constant(self) -> int | None:
        """Its value if it has no atom."""
        return self.terms.get((), 0) if self.terms.keys() <= {()} else None


class Terms:
    """Translates expressions of one kernel; blocks that a query compares have a name each.

    Attributes:
        loads: the elements of constant tensors in terms made so far.
        boolean: gives the term of a condition, as a block evaluates it.
        polynomial: gives an integer expression as a sum of products.
    """

    def __init__(self, of_block: Iterable[ir.Var] = ()) -> None:
        """Create it; `of_block` are the variables that each block has of its own."""
        self.loads: dict[int, Load] = {}
        self._of_block = frozenset(of_block)
        self.boolean: Callable[..., z3.BoolRef] = cache(self._boolean)
        self.polynomial: Callable[..., Polynomial] = cache(self._polynomial)
        self._atoms: list[z3.ArithRef] = []
        self._numbers: dict[int, int] = {}
        self._products: dict[_Monomial, z3.ArithRef] = {}
        self._lemmas: list[z3.BoolRef] = []
        self._multiply = z3.Function("product", z3.IntSort(), z3.IntSort(), z3.IntSort())
        self._functions: dict[str, z3.FuncDeclRef] = {}
        self._buffers: dict[ir.Var, str] = {}
        self._tables: dict[str, ir.Buffer] = {}
        self._names: dict[ir.Var, str] = {}
        self._bound: dict[tuple[ir.Var, str], Polynomial] = {}

    # Public --------------------------------------------------------------------------------

    def integer(self, node: ir.Expr, block: str = "") -> z3.ArithRef:
        """The term of an integer expression, as a block evaluates it."""
        return self.term(self.polynomial(node, block))

    def variable(self, var: ir.Var, block: str = "") -> z3.ArithRef:
        """The constant that stands for a variable."""
        return z3.Int(self._name(var, block))

    def bind(self, var: ir.Var, value: z3.ArithRef, block: str) -> None:
        """Let a variable be a term in what a block evaluates from now on."""
        self._bound[var, block] = self.parsed(value)

    def replaced(
        self, term: z3.ArithRef, pairs: Sequence[tuple[z3.ArithRef, z3.ArithRef]]
    ) -> z3.ArithRef:
        """A term with parts replaced; facts and lemmas are about the loads and quotients in it."""
        found: z3.ArithRef = z3.substitute(term, *pairs) if pairs else term
        for each in list(subterms(found)):
            buffer = self._tables.get(each.decl().name())
            if buffer is not None:
                self.load(buffer, each.children())
            elif each.decl().name() in ("quotient", "remainder"):
                self.divided(*(self.parsed(part) for part in each.children()))
        return found

    def indices_in(self, term: z3.ExprRef) -> Iterator[z3.ExprRef]:
        """The indices of all elements of constant tensors in a term."""
        for each in subterms(term):
            if each.decl().name() in self._tables:
                yield from each.children()

    def parsed(self, term: z3.ArithRef) -> Polynomial:
        """A term as a sum of products."""
        kind = term.decl().kind()
        parts = term.children()
        if kind == z3.Z3_OP_ADD:
            return reduce(Polynomial.plus, map(self.parsed, parts))
        if kind == z3.Z3_OP_SUB:
            return self.parsed(parts[0]).plus(self.parsed(parts[1]), -1)
        if kind == z3.Z3_OP_UMINUS:
            return Polynomial({}).plus(self.parsed(parts[0]), -1)
        if kind == z3.Z3_OP_MUL or term.decl().eq(self._multiply):
            return reduce(Polynomial.times, map(self.parsed, parts))
        return self.of_term(term)

    def atoms(self, polynomial: Polynomial) -> Iterator[tuple[z3.ArithRef, int]]:
        """The terms of a sum with their factors, products included, without the constant."""
        for monomial, count in polynomial.terms.items():
            if monomial:
                yield self._product(monomial), count

    def bounds(self, ranges: Iterable[Range], block: str = "") -> Iterator[z3.BoolRef]:
        """What the bounds of variables say."""
        for each in ranges:
            if each.extent is not None:
                parts = (each.var, each.low, each.extent)
                var, low, extent = (self.integer(part, block) for part in parts)
                yield from (var >= low, var < low + extent)

    def term(self, polynomial: Polynomial) -> z3.ArithRef:
        """The term of a polynomial."""
        parts = [
            z3.IntVal(c) if not m else self._product(m) * c if c != 1 else self._product(m)
            for m, c in sorted(polynomial.terms.items() or [((), 0)])
        ]
        return z3.Sum(parts) if len(parts) > 1 else parts[0]

    def of_term(self, term: z3.ArithRef) -> Polynomial:
        """A polynomial of one atom; of a constant its value."""
        if z3.is_int_value(term):
            return Polynomial({(): term.as_long()})
        number = self._numbers.setdefault(term.get_id(), len(self._atoms))
        if number == len(self._atoms):
            self._atoms.append(term)
        return Polynomial({(number,): 1})

    def lemmas(self) -> list[z3.BoolRef]:
        """What is known of the products and quotients in terms made so far."""
        found = list(self._lemmas)
        monomials = [m for m in self._products if len(m) > 1]
        for m in monomials:
            found += self._signs(m)
        pairs = ((a, b, common) for a, b in combinations(monomials, 2) if (common := _common(a, b)))
        for pair in islice(pairs, _MOST_PAIRS):
            found += self._order(*pair)
        return found

    def limits(self) -> Iterator[z3.BoolRef]:
        """That products are small where their factors are, in powers of two."""
        for monomial in [m for m in self._products if len(m) > 1]:
            a, b = self._atoms[monomial[0]], self._product(monomial[1:])
            product = self._products[monomial]
            for top in (21, 30):
                for bits in range(3, top, 3):
                    small = z3.And(a >= 0, b >= 0, a <= 1 << bits, b <= 1 << (top - bits))
                    yield z3.Implies(small, product <= 1 << top)

    # Integers ------------------------------------------------------------------------------

    def _polynomial(self, node: ir.Expr, block: str = "") -> Polynomial:
        match node:
            case ir.IntImm():
                return Polynomial({(): node.value})
            case ir.Var() if node.dtype != "bool":
                bound = self._bound.get((node, block))
                return bound or self.of_term(self.variable(node, block))
            case ir.Cast():
                return self.polynomial(node.value, block)
            case ir.Add() | ir.Sub():
                factor = 1 if isinstance(node, ir.Add) else -1
                return self.polynomial(node.a, block).plus(self.polynomial(node.b, block), factor)
            case ir.Mul():
                return self.polynomial(node.a, block).times(self.polynomial(node.b, block))
            case ir.FloorDiv() | ir.FloorMod() | ir.Div() | ir.Mod():
                x, y = self.polynomial(node.a, block), self.polynomial(node.b, block)
                rest = isinstance(node, (ir.FloorMod, ir.Mod))
                down = self.divided(x, y, rest=rest)
                if isinstance(node, (ir.FloorDiv, ir.FloorMod)):
                    return down
                # Truncated: towards zero where x is negative.
                up = self.term(self.divided(Polynomial({}).plus(x, -1), y, rest=rest))
                return self.of_term(z3.If(self.term(x) >= 0, self.term(down), -up))
            case ir.Min() | ir.Max():
                x, y = self.integer(node.a, block), self.integer(node.b, block)
                first = x <= y if isinstance(node, ir.Min) else x >= y
                return self.of_term(z3.simplify(z3.If(first, x, y)))
            case ir.Select():
                a, b = self.integer(node.true_value, block), self.integer(node.false_value, block)
                if a.eq(b):
                    return self.polynomial(node.true_value, block)
                return self.of_term(z3.If(self.boolean(node.condition, block), a, b))
            case ir.BufferLoad():
                indices = [self.integer(i, block) for i in node.indices]
                return self.of_term(self.load(node.buffer, indices))
            case ir.Call() if node.op == "power_of_two":
                power = self._function("power_of_two", 1)(self.integer(node.args[0], block))
                self._lemmas.append(power >= 1)
                return self.of_term(power)
            case _ if node.dtype == "bool":
                truth = self.boolean(node, block)
                return self.of_term(z3.If(truth, z3.IntVal(1), z3.IntVal(0)))
        raise TypeError(f"no integer of the access model: {type(node).__name__}")

    def divided(self, x: Polynomial, y: Polynomial, *, rest: bool = False) -> Polynomial:
        """`x // y` rounded down, or its remainder; `y` is positive."""
        divisor = y.constant
        if divisor is not None and divisor > 0:
            return self._floor_constant(x, divisor, rest)
        whole, left = (self._function(name, 2) for name in ("quotient", "remainder"))
        a, b = self.term(x), self.term(y)
        quotient, remainder = whole(a, b), left(a, b)
        product = self.of_term(quotient).times(y)
        self._lemmas += [
            z3.Implies(b > 0, a == self.term(product) + remainder),
            z3.Implies(b > 0, z3.And(remainder >= 0, remainder < b)),
            z3.Implies(z3.And(b > 0, a >= 0), z3.And(quotient >= 0, quotient <= a)),
        ]
        return self.of_term(remainder if rest else quotient)

    def _floor_constant(self, x: Polynomial, divisor: int, rest: bool) -> Polynomial:
        """Multiples of the divisor leave the division: `(8 x + y) // 8` is `x + y // 8`."""
        if divisor == 1:
            return Polynomial({}) if rest else x
        whole = {m: c // divisor for m, c in x.terms.items() if m and c % divisor == 0}
        left = Polynomial({m: c for m, c in x.terms.items() if m not in whole})
        value = left.constant
        if value is not None:
            found = Polynomial({(): value % divisor if rest else value // divisor})
        else:
            term = self.term(left)
            found = self.of_term(term % divisor if rest else term / divisor)
        return found if rest else Polynomial(whole).plus(found)

    def load(self, buffer: ir.Buffer, indices: Sequence[z3.ArithRef]) -> z3.ArithRef:
        """An element of a constant tensor."""
        name = self._buffers.setdefault(buffer.data, f"{buffer.name}.{len(self._buffers)}")
        self._tables[name] = buffer
        value = self._function(name, len(indices))(*indices)
        self.loads.setdefault(value.get_id(), Load(buffer, tuple(indices), value))
        return value

    # Conditions ----------------------------------------------------------------------------

    def _boolean(self, node: ir.Expr, block: str = "") -> z3.BoolRef:
        match node:
            case ir.IntImm():
                return z3.BoolVal(bool(node.value))
            case ir.Var() if node.dtype == "bool":
                return z3.Bool(self._name(node, block))
            case ir.Not():
                return z3.Not(self.boolean(node.a, block))
            case ir.And():
                return z3.And(self.boolean(node.a, block), self.boolean(node.b, block))
            case ir.Or():
                return z3.Or(self.boolean(node.a, block), self.boolean(node.b, block))
            case ir.Compare():
                a, b = self.polynomial(node.a, block), self.polynomial(node.b, block)
                difference = self.term(a.plus(b, -1))
                found: z3.BoolRef = _COMPARED[node.symbol](difference, z3.IntVal(0))
                return found
            case ir.Select():
                parts = (node.condition, node.true_value, node.false_value)
                test, yes, no = (self.boolean(each, block) for each in parts)
                return z3.If(test, yes, no)
        return self.integer(node, block) != 0

    # Atoms, products, names ----------------------------------------------------------------

    def _product(self, monomial: _Monomial) -> z3.ArithRef:
        if len(monomial) < 2:
            return self._atoms[monomial[0]] if monomial else z3.IntVal(1)
        if monomial not in self._products:
            first, rest = self._atoms[monomial[0]], self._product(monomial[1:])
            self._products[monomial] = self._multiply(first, rest)
            self._lemmas.append(self._multiply(first, rest) == self._multiply(rest, first))
            self._lemmas += self._chosen_factors(monomial)
        return self._products[monomial]

    def _chosen_factors(self, monomial: _Monomial) -> Iterator[z3.BoolRef]:
        """A product by one of two values is the product by the one that is chosen."""
        for number in monomial:
            if z3.is_app_of(self._atoms[number], z3.Z3_OP_ITE):
                test, *values = self._atoms[number].children()
                others = Polynomial({_without(monomial, (number,)): 1})
                for holds, value in zip((test, z3.Not(test)), values, strict=True):
                    product = self.term(self.parsed(value).times(others))
                    yield z3.Implies(holds, self._products[monomial] == product)

    def _signs(self, monomial: _Monomial) -> Iterator[z3.BoolRef]:
        """What a product of two factors is where one of them is 0, 1, or at least 1."""
        product = self._products[monomial]
        for number in set(monomial):
            a, b = self._atoms[number], self._product(_without(monomial, (number,)))
            yield z3.Implies(z3.Or(a == 0, b == 0), product == 0)
            yield z3.Implies(a == 1, product == b)
            yield z3.Implies(b == 1, product == a)
            yield z3.Implies(z3.And(a >= 0, b >= 0), product >= 0)
            yield z3.Implies(z3.And(a >= 1, b >= 1), z3.And(product >= a, product >= b))
            yield z3.Implies(z3.And(a >= 0, b <= -1), product <= -a)
            yield z3.Implies(z3.And(b >= 0, a <= -1), product <= -b)

    def _order(self, a: _Monomial, b: _Monomial, common: _Monomial) -> Iterator[z3.BoolRef]:
        """Of `x * z` and `y * z`: if x < y and z >= 1, then x * z + z <= y * z."""
        x, y = self._product(_without(a, common)), self._product(_without(b, common))
        z, first, second = (self._product(each) for each in (common, a, b))
        for low, high, less, more in ((x, y, first, second), (y, x, second, first)):
            yield z3.Implies(z3.And(z >= 1, low < high), less + z <= more)
        yield z3.Implies(x == y, first == second)

    def _function(self, name: str, arity: int) -> z3.FuncDeclRef:
        if name not in self._functions:
            self._functions[name] = z3.Function(name, *[z3.IntSort()] * (arity + 1))
        return self._functions[name]

    def _name(self, var: ir.Var, block: str) -> str:
        if var not in self._names:
            self._names[var] = f"{var.name}.{len(self._names)}"
        name = self._names[var]
        return f"{name}@{block}" if block and var in self._of_block else name


def _common(a: _Monomial, b: _Monomial) -> _Monomial:
    return tuple(sorted((Counter(a) & Counter(b)).elements()))


def _without(monomial: _Monomial, factor: _Monomial) -> _Monomial:
    return tuple(sorted((Counter(monomial) - Counter(factor)).elements()))


def subterms(term: z3.ExprRef) -> Iterator[z3.ExprRef]:
    """A term and all terms in it, each once."""
    seen: set[int] = set()
    left = [term]
    while left:
        each = left.pop()
        if each.get_id() not in seen:
            seen.add(each.get_id())
            yield each
            left += each.children()
