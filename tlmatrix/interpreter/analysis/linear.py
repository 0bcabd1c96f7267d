"""Integer expressions as sums of multiples of terms, to simplify their differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same


@dataclass(frozen=True)
class Linear:
    """`constant` plus the sum of `factor * term`; no two terms have one structure."""

    terms: tuple[tuple[Any, int], ...]
    constant: int

    def plus(self, other: Linear, sign: int = 1) -> Linear:
        """The sum, or with sign -1 the difference."""
        terms = list(self.terms)
        for term, factor in other.terms:
            for k, (known, before) in enumerate(terms):
                if same(known, term):
                    terms[k] = (known, before + sign * factor)
                    break
            else:
                terms.append((term, sign * factor))
        kept = tuple((term, factor) for term, factor in terms if factor)
        return Linear(kept, self.constant + sign * other.constant)

    def times(self, factor: int) -> Linear:
        """A multiple."""
        terms = tuple((term, factor * f) for term, f in self.terms if factor)
        return Linear(terms, factor * self.constant)

    @property
    def expr(self) -> Any:
        """The expression of the IR."""
        found: Any = None
        for term, factor in sorted(self.terms, key=lambda t: t[1] < 0):
            size = ir.IntImm(term.dtype, abs(factor))
            part = term if abs(factor) == 1 else ir.Mul(term.dtype, term, size)
            if found is None:
                found = part if factor > 0 else ir.Sub(term.dtype, ir.IntImm(term.dtype, 0), part)
            else:
                found = (ir.Add if factor > 0 else ir.Sub)(term.dtype, found, part)
        if found is None:
            return ir.IntImm("int32", self.constant)
        if not self.constant:
            return found
        kind = ir.Add if self.constant > 0 else ir.Sub
        return kind(found.dtype, found, ir.IntImm(found.dtype, abs(self.constant)))


def linear(node: Any) -> Linear:
    """The form of an integer expression; any expression is at least a term of its own."""
    if isinstance(node, ir.IntImm):
        return Linear((), node.value)
    if isinstance(node, ir.Add):
        return linear(node.a).plus(linear(node.b))
    if isinstance(node, ir.Sub):
        return linear(node.a).plus(linear(node.b), -1)
    if isinstance(node, ir.Mul):
        for one, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(other, ir.IntImm):
                return linear(one).times(other.value)
    return Linear(((node, 1),), 0)
