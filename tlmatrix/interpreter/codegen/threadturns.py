"""Parallel loops whose threads take turns: several iterations of a thread write one element.

`acc[i, j // 4] = T.max(acc[i, j // 4], x[i, j])` is a race between lanes, unless all iterations
that write an element belong to the thread that has it: then they follow each other. Which thread
runs which iteration is TileLang's layout inference's to say; it is asked where the author annotated
layouts of fragments, and of such loops only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.indexing import ARITHMETIC
from tlmatrix.interpreter.layouts import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Inferred", "ThreadTurns", "annotates_fragments", "loop_of_turns"]

_PARALLEL = 1
# More iterations than this a loop of tiles does not have.
_MOST = 1 << 20


@dataclass(frozen=True)
class ThreadTurns:
    """A nest of parallel loops as its threads run it.

    Attributes:
        variables: of the loops, outermost first.
        extents: of the loops.
        body: of the innermost loop.
        thread: code of the thread of an iteration, over the names `i0`, `i1`, ...
        place: the same of its place among those of its thread.
        threads: how many threads run iterations.
    """

    variables: tuple[Any, ...]
    extents: tuple[int, ...]
    body: Any
    thread: str
    place: str
    threads: int


def annotates_fragments(func: Any) -> bool:
    """Whether the author says of fragments which thread has which element."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, tvm.tirx.SBlock) and "layout_map" in node.annotations:
            annotated = list(dict(node.annotations["layout_map"]))
            for buffer in node.alloc_buffers:
                if str(buffer.scope()) == "local.fragment":
                    found = found or any(buffer.data.same_as(var) for var in annotated)

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return found


class Inferred:
    """The layouts that TileLang infers of a kernel's fragments and parallel loops."""

    def __init__(self, func: Any, arch: str) -> None:
        self.loops: list[tuple[Any, Any]] = []
        self.fragments: list[tuple[Any, Any]] = []
        from tilelang import transform, tvm

        target = tvm.target.Target({"kind": "cuda", "arch": arch})
        module = tvm.IRModule({"main": func})
        try:
            with target:
                module = tvm.tirx.transform.BindTarget(target)(module)
                module = transform.MaterializeKernelLaunch(
                    lower_thread_binding=True, default_threads=128
                )(module)
                module = transform.LetInline()(module)
                module = transform.LayoutInference()(module)
        except Exception:  # noqa: BLE001  # whatever it raises, it then says nothing of layouts
            return
        (inferred,) = (f for f in module.functions.values() if hasattr(f, "body"))

        def visit(node: Any) -> None:
            if isinstance(node, tvm.tirx.For) and "parallel_loop_layout" in node.annotations:
                self.loops.append((node.loop_var, node.annotations["parallel_loop_layout"]))
            elif isinstance(node, tvm.tirx.SBlock) and "layout_map" in node.annotations:
                for key, layout in dict(node.annotations["layout_map"]).items():
                    self.fragments.append((getattr(key, "data", key), layout))

        tvm.tirx.stmt_functor.post_order_visit(inferred.body, visit)

    def of_loop(self, variable: Any) -> Any:
        """The layout of the nest whose outermost variable this is; None where none is known."""
        return next((layout for var, layout in self.loops if var.same_as(variable)), None)

    def of_fragment(self, data: Any) -> Any:
        """The layout of a fragment; None where none is known."""
        return next((layout for var, layout in self.fragments if var.same_as(data)), None)


def loop_of_turns(node: Any, inferred: Any) -> ThreadTurns | None:
    """How threads run a parallel loop of which some iterations write one element of a fragment.

    Args:
        node: the outermost loop.
        inferred: gives the `Inferred` layouts, or None; called only where iterations meet.

    Returns:
        None where no iterations meet, or where they are not known to be of one thread.
    """
    nest = _nest(node)
    if nest is None:
        return None
    variables, extents, body = nest
    values = dict(zip(variables, np.indices(extents, sparse=True), strict=True))
    bound = _bind(body, values)
    meeting = [
        (store.buffer, elements)
        for store in _fragment_stores(body)
        if (elements := _elements(store, values, [*variables, *bound], extents)) is not None
        and len(np.unique(elements)) < elements.size
    ]
    if not meeting:
        return None
    layouts: Inferred | None = inferred()
    loop = layouts.of_loop(variables[0]) if layouts is not None else None
    if layouts is None or loop is None or len(loop.get_input_shape()) != len(extents):
        return None
    try:
        runs = _threads_of(loop, extents)
        for buffer, elements in meeting:
            layout = layouts.of_fragment(buffer.data)
            if layout is None or not _owned(elements, runs, layout, buffer):
                return None
        names = [f"i{k}" for k in range(len(extents))]
        coded = dict(zip(_variables(loop, extents), names, strict=True))
        places = [_spelled(index, coded) for index in loop.get_forward_index()]
        thread = _spelled(loop.thread, coded)
    except Unsupported:
        return None
    place = places[0]
    for extent, code in zip(list(loop.get_output_shape())[1:], places[1:], strict=True):
        place = f"({place}) * {int(extent)} + {code}"
    return ThreadTurns(variables, extents, body, thread, place, len(np.unique(runs[0])))


def _nest(node: Any) -> tuple[tuple[Any, ...], tuple[int, ...], Any] | None:
    """Variables, extents and body of loops of which each holds nothing but the next."""
    from tilelang import tvm

    variables: list[Any] = []
    extents: list[int] = []
    while isinstance(node, tvm.tirx.For) and int(node.kind) == _PARALLEL:
        if int(getattr(node.min, "value", 1)) != 0 or not hasattr(node.extent, "value"):
            return None
        variables.append(node.loop_var)
        extents.append(int(node.extent.value))
        node = node.body
    if math.prod(extents) > _MOST:
        return None
    simple = True

    def visit(inner: Any) -> None:
        nonlocal simple
        if isinstance(inner, tvm.tirx.For):
            simple = simple and int(inner.kind) != _PARALLEL
        elif isinstance(inner, tvm.tirx.BufferStore):
            # Memory that each iteration has for itself has no place in turns.
            simple = simple and str(inner.buffer.scope()) not in ("local", "local.var")

    tvm.tirx.stmt_functor.post_order_visit(node, visit)
    return (tuple(variables), tuple(extents), node) if simple else None


def _bind(body: Any, values: dict[Any, Any]) -> list[Any]:
    """The names that a loop's body binds; what follows from the loops' variables gets its value."""
    from tilelang import tvm

    bound: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.Bind):
            bound.append(node.var)
            found = _known(node.value, values)
            if found is not None:
                values[node.var] = found

    tvm.tirx.stmt_functor.post_order_visit(body, visit)
    return bound


def _fragment_stores(body: Any) -> Iterator[Any]:
    from tilelang import tvm

    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.BufferStore) and str(node.buffer.scope()) == "local.fragment":
            found.append(node)

    tvm.tirx.stmt_functor.post_order_visit(body, visit)
    yield from found


def _elements(
    store: Any, values: Mapping[Any, Any], names: Sequence[Any], extents: tuple[int, ...]
) -> Any:
    """The number of the element that each iteration stores to; None where it is not known.

    `names` are those whose values differ between iterations.
    """
    number: Any = 0
    for index, extent in zip(store.indices, store.buffer.shape, strict=True):
        at = _known(index, values)
        if at is None and not any(_uses(index, name) for name in names):
            at = 0  # the same for all of them
        if at is None or not hasattr(extent, "value"):
            return None
        number = number * int(extent.value) + at
    return np.broadcast_to(number, extents)


def _known(index: Any, values: Mapping[Any, Any]) -> Any:
    try:
        return evaluate(index, values)
    except Unsupported:
        return None


def _uses(index: Any, variable: Any) -> bool:
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        found = found or (isinstance(node, tvm.tirx.Var) and node.same_as(variable))

    tvm.tirx.stmt_functor.post_order_visit(index, visit)
    return found


def _threads_of(layout: Any, shape: Sequence[int]) -> Any:
    """The threads that have each element, or run each iteration: [copies, *shape], sorted."""
    copies = int(layout.replicate_size)
    grid = np.indices((copies, *shape), sparse=True)
    values: dict[Any, Any] = dict(zip(_variables(layout, shape), grid[1:], strict=True))
    # The copy's number is another variable in the expression than among the layout's.
    values["_rep"] = values["rep"] = grid[0]
    found = np.broadcast_to(evaluate(layout.thread, values), (copies, *shape))
    return np.sort(found, axis=0)


def _variables(layout: Any, shape: Sequence[int]) -> list[Any]:
    """The variables of a layout's indices; one of its copies comes before them, if there is one."""
    return list(layout.get_forward_vars())[-len(shape) :]


def _owned(elements: Any, runs: Any, layout: Any, buffer: Any) -> bool:
    """Whether each iteration is run by all threads that have a copy of the element it writes."""
    shape = [int(n.value) for n in buffer.shape]
    if elements.size and (elements.min() < 0 or elements.max() >= math.prod(shape)):
        return False
    has = _threads_of(layout, shape).reshape(int(layout.replicate_size), -1)
    mine = has[:, elements.reshape(-1)]
    done = runs.reshape(runs.shape[0], -1)
    return mine.shape == done.shape and bool((mine == done).all())


def _spelled(node: Any, names: Mapping[Any, str]) -> str:
    """An index expression as code, over arrays; of the first copy."""
    kind = type(node).__name__
    if kind == "IntImm":
        return str(int(node.value))
    if kind in ("Var", "SizeVar"):
        found = next((name for var, name in names.items() if var.same_as(node)), None)
        return found if found is not None else "0"
    if kind in ARITHMETIC:
        a, b = _spelled(node.a, names), _spelled(node.b, names)
        return f"np.{ARITHMETIC[kind].__name__}({a}, {b})"
    raise Unsupported(f"the interpreter does not model {kind} in a layout")
