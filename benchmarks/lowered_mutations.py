"""Changes of lowered code at one place: deleted synchronization, wider vectors, other swizzles."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.lowered.emit import split
from tlmatrix.interpreter.lowered.lowering import DescriptorCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lowered_launches import Recorded

REMOVED = {
    "tirx.tvm_storage_sync": "barrier",
    "tl.sync_warp": "barrier of a warp",
    "tirx.ptx_commit_group": "commit of cp.async",
    "tirx.ptx_wait_group": "wait for cp.async",
    "tl.mbarrier_wait_parity": "wait for an mbarrier",
    "tirx.ptx_arrive_barrier": "arrival",
    "tl.ptx_cp_async_barrier_noinc": "arrival of cp.async",
    "tl.sync_grid": "barrier of the grid",
    "tirx.ptx_arrive_barrier_expect_tx": "arrival with bytes",
    "tl.mbarrier_expect_tx": "expected bytes",
    "tl.fence_proxy_async": "proxy fence",
    "tl.warpgroup_arrive": "wgmma fence",
    "tl.warpgroup_commit_batch": "commit of wgmma",
    "tl.warpgroup_wait": "wait for wgmma",
    "tl.wait_wgmma": "wait for wgmma",
    "tl.tma_store_arrive": "commit of TMA stores",
    "tl.tma_store_wait": "wait for TMA stores",
}
"""By operation that a mutant removes, what it is called."""

Path_ = tuple[Any, ...]
"""Where a node is: the names of fields, and positions in tuples, from the root."""


@dataclass(frozen=True)
class Mutation:
    """A change of a kernel at one place: `replaced` makes the new node of the old one.

    Attributes:
        function: the number of the device function, or of the step of the host code.
        host: whether it is a step of the host code.
    """

    kind: str
    function: int
    path: Path_
    replaced: Callable[[Any], Any]
    host: bool = False


# Places of nodes ----------------------------------------------------------------------------------


def _below(node: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any, Any]]:
    """Places, nodes, and the user's line of all nodes below one; parents first."""
    if isinstance(node, tuple):
        for k, each in enumerate(node):
            yield from _below(each, (*path, k))
    elif isinstance(node, ir.Stmt | ir.Expr):
        yield path, node, getattr(node, "location", None)
        for field in dataclasses.fields(node):
            if field.name not in ("var", "loop_var"):
                yield from _below(getattr(node, field.name), (*path, field.name))


def _changed(node: Any, path: Path_, replaced: Callable[[Any], Any]) -> Any:
    """A tree with another node at a place."""
    if not path:
        return replaced(node)
    first, *rest = path
    if isinstance(node, tuple):
        return (*node[:first], _changed(node[first], tuple(rest), replaced), *node[first + 1 :])
    return replace(node, **{first: _changed(getattr(node, first), tuple(rest), replaced)})


# Mutations ----------------------------------------------------------------------------------------


def mutations(launch: Recorded) -> Iterator[Mutation]:
    """All changes of a kernel, in the order of its code."""
    for number, function in enumerate(launch.functions):
        for path, node, _ in _below(function.body):
            if isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Call):
                yield from _of_call(number, path, node.value)
            elif isinstance(node, ir.BufferStore) and _is_vector_access(node):
                yield Mutation("width", number, path, _wider)
        for path, node, _ in _addresses(function.body):
            if isinstance(node, ir.Call) and node.op == "tirx.bitwise_xor":
                yield Mutation("swizzle", number, path, lambda n: n.args[0])
            elif isinstance(node, ir.FloorMod) and getattr(node.b, "value", 0) in (2, 4, 8):
                yield Mutation("swizzle", number, path, _shifted)
    for number, step in enumerate(launch.steps):
        if isinstance(step, DescriptorCall):
            at = 4 * int(step.arguments[1].value) + 4
            yield Mutation(
                "descriptor's swizzle", number, ("arguments", at), _other_mode, host=True
            )


def _of_call(number: int, path: Path_, call: ir.Call) -> Iterator[Mutation]:
    if call.op in REMOVED:
        nothing = ir.IntImm("int32", 0)
        yield Mutation(REMOVED[call.op], number, (*path, "value"), lambda _: nothing)
    if call.op == "tirx.ptx_arrive_barrier_expect_tx":
        yield Mutation(
            "expected bytes",
            number,
            (*path, "value"),
            lambda n: replace(n, op="tirx.ptx_arrive_barrier", args=n.args[:1]),
        )
    if call.op == "tl.ptx_cp_async":
        yield Mutation("width", number, (*path, "value", "args", 2), _doubled)


def _is_memory(node: Any) -> bool:
    return node.buffer.scope in ("global", "") or node.buffer.scope.startswith("shared")


def _is_vector_access(node: ir.BufferStore) -> bool:
    accesses = [n for _, n, _ in _below(node) if isinstance(n, ir.BufferLoad)]
    return any(
        _is_memory(each) and any(isinstance(i, ir.Ramp) for i in each.indices)
        for each in (node, *accesses)
    )


def _wider(node: Any) -> Any:
    """A statement on vectors of twice as many elements."""
    if isinstance(node, tuple):
        return tuple(_wider(each) for each in node)
    if not isinstance(node, ir.Stmt | ir.Expr) or isinstance(node, ir.Var):
        return node
    parts = {f.name: _wider(getattr(node, f.name)) for f in dataclasses.fields(node)}
    if isinstance(node, ir.Ramp | ir.Broadcast):
        parts["lanes"] = 2 * node.lanes
        parts |= {k: getattr(node, k) for k in ("base", "stride", "value") if hasattr(node, k)}
    if isinstance(node, ir.Expr) and (count := split(node.dtype)[1]) > 1:
        parts["dtype"] = re.sub(r"x\d+$", f"x{2 * count}", node.dtype)
    return replace(node, **parts)


def _doubled(node: ir.IntImm) -> ir.IntImm:
    return replace(node, value=2 * node.value)


def _shifted(node: ir.FloorMod) -> ir.FloorMod:
    return replace(node, a=ir.Add(node.a.dtype, node.a, ir.IntImm(node.a.dtype, 1)))


def _other_mode(node: ir.IntImm) -> ir.IntImm:
    return replace(node, value=(int(node.value) + 1) % 4)


def _addresses(body: Any) -> Iterator[tuple[Path_, Any, Any]]:
    """What is in the indices of accesses to shared memory."""
    for path, node, _ in _below(body):
        if isinstance(node, ir.BufferLoad | ir.BufferStore) and node.buffer.scope == "shared.dyn":
            yield from _below(node.indices, (*path, "indices"))
        elif isinstance(node, ir.Call) and node.op == "tirx.tvm_access_ptr":
            yield from _below(node.args[2], (*path, "args", 2))


def mutated(launch: Recorded, mutation: Mutation) -> Recorded:
    """A launch of the changed kernel."""
    k = mutation.function
    if mutation.host:
        steps = list(launch.steps)
        steps[k] = _changed(steps[k], mutation.path, mutation.replaced)
        return replace(launch, steps=tuple(steps))
    functions = list(launch.functions)
    body = _changed(functions[k].body, mutation.path, mutation.replaced)
    functions[k] = replace(functions[k], body=body)
    return replace(launch, functions=functions)


def trapped(launch: Recorded, mutation: Mutation) -> Recorded:
    """A launch that calls "trap" in place of the statement that a mutation changes."""
    node: Any = launch.functions[mutation.function].body
    last = 0
    for k, step in enumerate(mutation.path):
        node = node[step] if isinstance(node, tuple) else getattr(node, step)
        if isinstance(node, ir.Stmt):
            last = k + 1
    trap = ir.Evaluate(None, ir.Call("int32", "trap", (), {}))
    return mutated(launch, replace(mutation, path=mutation.path[:last], replaced=lambda _: trap))
