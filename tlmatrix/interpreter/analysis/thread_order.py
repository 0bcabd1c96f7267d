"""Parallel loops in which several iterations of a thread write one element.

`acc[i, j // 4] = T.max(acc[i, j // 4], x[i, j])` is a race between iterations, unless all that
write an element belong to the thread that has it: then they follow each other. Which thread runs
which iteration is up to TileLang's layout inference, which is run where the author annotated
layouts of fragments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .constants import is_zero, number
from .evaluate import ARITHMETIC, evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# More iterations than this a loop of tiles does not have.
_MOST = 1 << 20


@dataclass(frozen=True)
class ThreadOrder:
    """A nest of parallel loops as its threads run it.

    Attributes:
        variables: of the loops, outermost first.
        extents: of the loops.
        body: of the innermost loop.
        thread: code of the thread of an iteration, over the names `i0`, `i1`, ...
        position: the same of its position among those of its thread.
        threads: how many threads run iterations.
    """

    variables: tuple[ir.Var, ...]
    extents: tuple[int, ...]
    body: ir.Stmt
    thread: str
    position: str
    threads: int


@dataclass(frozen=True)
class InferredLayouts:
    """The layouts that TileLang infers of a kernel.

    Attributes:
        loops: of nests of parallel loops, by the outermost variable.
        fragments: by data.
        shapes: the output shape of each layout, as TileLang computes it.
    """

    loops: Mapping[ir.Var, ir.Layout]
    fragments: Mapping[ir.Var, ir.Layout]
    shapes: Mapping[ir.Layout, tuple[int, ...]]


def annotates_fragments(kernel: ir.Kernel) -> bool:
    """Whether the author states which thread has which element of a fragment."""
    for node in walk(kernel.body):
        if isinstance(node, ir.Block) and "layout_map" in node.annotations:
            annotated = node.annotations["layout_map"]
            if any(b.scope == "local.fragment" and b.data in annotated for b in node.alloc_buffers):
                return True
    return False


def thread_order(loop: ir.For, layouts: InferredLayouts | None) -> ThreadOrder | None:
    """How threads run a parallel loop of which some iterations write one element of a fragment.

    None where no two iterations do, or where they are not known to be of one thread.
    """
    nest = _nest(loop)
    if nest is None or layouts is None:
        return None
    variables, extents, body = nest
    values = dict(zip(variables, np.indices(extents, sparse=True), strict=True))
    bound = _bind(body, values)
    shared = [
        (store.buffer, elements)
        for store in walk(body)
        if isinstance(store, ir.BufferStore)
        and store.buffer.scope == "local.fragment"
        and (elements := _elements(store, values, [*variables, *bound], extents)) is not None
        and len(np.unique(elements)) < elements.size
    ]
    layout = layouts.loops.get(variables[0]) if shared else None
    if layout is None or len(layout.shape) != len(extents):
        return None
    try:
        runs = threads_of(layout, extents)
        for buffer, elements in shared:
            owner = layouts.fragments.get(buffer.data)
            if owner is None or not _is_owned(elements, runs, owner, buffer):
                return None
        names = {v: f"i{k}" for k, v in enumerate(placeholders(layout))}
        positions = [_code(index, names) for index in layout.index]
        thread = _code(layout.thread, names)
    except Unsupported:
        return None
    position = positions[0]
    for extent, code in zip(layouts.shapes[layout][1:], positions[1:], strict=True):
        position = f"({position}) * {extent} + {code}"
    return ThreadOrder(variables, extents, body, thread, position, len(np.unique(runs[0])))


def _nest(node: Any) -> tuple[tuple[ir.Var, ...], tuple[int, ...], ir.Stmt] | None:
    """Variables, extents and body of loops of which each holds nothing but the next."""
    variables: list[ir.Var] = []
    extents: list[int] = []
    while isinstance(node, ir.For) and node.kind == ir.PARALLEL:
        if not is_zero(node.min) or number(node.extent) is None:
            return None
        variables.append(node.loop_var)
        extents.append(int(number(node.extent)))
        node = node.body
    if math.prod(extents) > _MOST:
        return None
    for inner in walk(node):
        if isinstance(inner, ir.For) and inner.kind == ir.PARALLEL:
            return None
        # Memory that each iteration has for itself is not run by thread.
        if isinstance(inner, ir.BufferStore) and inner.buffer.scope in ("local", "local.var"):
            return None
    return tuple(variables), tuple(extents), node


def _bind(body: ir.Stmt, values: dict[Any, Any]) -> list[ir.Var]:
    """The names that a loop's body binds; what follows from the loops' variables gets its value."""
    bound = [node for node in walk(body) if isinstance(node, ir.Bind)]
    for node in bound:
        found = _known(node.value, values)
        if found is not None:
            values[node.var] = found
    return [node.var for node in bound]


def _elements(
    store: ir.BufferStore,
    values: Mapping[Any, Any],
    names: Sequence[ir.Var],
    extents: tuple[int, ...],
) -> Any:
    """The number of the element that each iteration stores to; None where it is not known.

    `names` are those whose values differ between iterations.
    """
    element: Any = 0
    for index, extent in zip(store.indices, store.buffer.shape, strict=True):
        at = _known(index, values)
        if at is None and not any(node in names for node in walk(index)):
            at = 0  # the same for all of them
        if at is None or number(extent) is None:
            return None
        element = element * int(number(extent)) + at
    return np.broadcast_to(element, extents)


def _known(index: Any, values: Mapping[Any, Any]) -> Any:
    try:
        return evaluate(index, values)
    except Unsupported:
        return None


def placeholders(layout: ir.Layout) -> list[str]:
    """The names of the variables of a layout's indices: `_i`, `_j`, ..."""
    return ["_" + chr(ord("i") + k) for k in range(len(layout.shape))]


def threads_of(layout: ir.Layout, shape: Sequence[int]) -> Any:
    """The threads that have each element, or run each iteration: [copies, *shape], sorted."""
    grid = np.indices((layout.replicate, *shape), sparse=True)
    values: dict[Any, Any] = dict(zip(placeholders(layout), grid[1:], strict=True))
    # The copy's number is another variable in the expression than among the layout's.
    values["_rep"] = values["rep"] = grid[0]
    found = np.broadcast_to(evaluate(layout.thread, values), (layout.replicate, *shape))
    return np.sort(found, axis=0)


def _is_owned(elements: Any, runs: Any, layout: ir.Layout, buffer: ir.Buffer) -> bool:
    """Whether each iteration is run by all threads that have a copy of the element it writes."""
    shape = [int(number(n)) for n in buffer.shape]
    if elements.size and (elements.min() < 0 or elements.max() >= math.prod(shape)):
        return False
    owners = threads_of(layout, shape).reshape(layout.replicate, -1)[:, elements.reshape(-1)]
    done = runs.reshape(runs.shape[0], -1)
    return owners.shape == done.shape and bool((owners == done).all())


def _code(node: Any, names: Mapping[Any, str]) -> str:
    """An index expression as code, over arrays; of the first copy."""
    if isinstance(node, ir.IntImm):
        return str(node.value)
    if isinstance(node, ir.Var):
        return names.get(node.name, "0")
    if type(node) in ARITHMETIC:
        function = ARITHMETIC[type(node)].__name__
        return f"np.{function}({_code(node.a, names)}, {_code(node.b, names)})"
    raise Unsupported(f"the interpreter does not model {type(node).__name__} in a layout")
