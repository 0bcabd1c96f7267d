"""Numbers at which a kernel changes what it does: tile sizes, offsets and limits of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .expressions import add_terms, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .accesses import Accesses

_LEAST, _MOST = 8, 1 << 16
"""Nearly every size is near a multiple of a smaller number; larger ones stand for "no limit"."""
_DIVISIONS = (ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod)


def edges(accesses: Accesses) -> tuple[int, ...]:
    """The numbers that a kernel combines sizes with in loops, comparisons and tiles, ascending.

    Sizes are symbolic dims, scalar parameters and elements of integer tensors. Of two numbers that
    follow each other, such as those of `n + 63` and `// 64`, only the second is one.
    """
    found = {n for n in _edges(accesses) if isinstance(n, int) and _LEAST <= n <= _MOST}
    return tuple(sorted(n for n in found if n + 1 not in found))


def _edges(accesses: Accesses) -> Iterator[Any]:
    variables = accesses.variables

    def has_size(node: Any) -> bool:
        return any(
            isinstance(each, ir.BufferLoad) or (isinstance(each, ir.Var) and each not in variables)
            for each in walk(node)
        )

    bounds = [r.extent for r in variables.values() if r.extent is not None]
    compared = [ir.Sub("int32", node.a, node.b) for node in accesses.comparisons]
    for sized in filter(has_size, (*bounds, *compared)):
        for node in walk(sized):
            if isinstance(node, _DIVISIONS) and has_size(node.a):
                yield number(node.b)
        terms: dict[Any, int] = {}
        yield abs(add_terms(sized, 1, terms))
        for atom, factor in terms.items():
            if atom in variables:
                yield from (abs(factor), number(variables[atom].extent))
    parameters = set(accesses.kernel.buffer_map.values())
    for index in (i for a in accesses.found if a.buffer in parameters for i in a.index):
        # A step of a block or of a loop, over which another variable goes one by one.
        terms = {}
        add_terms(index, 1, terms)
        extents = [number(variables[atom].extent) for atom in terms if atom in variables]
        yield from (factor for atom, factor in terms.items() if factor in extents)
