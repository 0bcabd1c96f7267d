"""The operations of the language, one module for each family; tables of their rules.

A module may have `TILES` (tile operations by name), `CALLS` (calls whose value is used), `EFFECTS`
(calls that are statements), `STATEMENTS` (rules of statements that it takes over), `FUNCTIONS`
(what the generated source calls), `SLICES` (which elements read an element written depends on), and
names of its operations that complete later (`ASYNCHRONOUS`), that threads wait or arrive at
(`SYNCHRONIZING`) or that every thread does (`EACH_THREAD`). To add an operation, add the name of
its module to a tuple below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.emit import arithmetic, blocks, logic, loops, memory, statements, stores
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.ir import nodes as ir

from .tile import tile_rule, tile_rule_of_threads

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ASYNCHRONOUS",
    "EACH_THREAD",
    "FUNCTIONS",
    "RULES",
    "SLICES",
    "SYNCHRONIZING",
    "THREAD_OPERATIONS",
    "THREAD_RULES",
    "overwritten",
]

_OF_BLOCKS = (
    "atomic",
    "bits",
    "control",
    "copy",
    "fill",
    "gemm",
    "gemm_blockscaled",
    "gemm_sp",
    "im2col",
    "mathematics",
    "pointer",
    "reduce",
    "reducer",
    "scan",
    "transpose",
    "words",
)
_OF_THREADS = (
    "allreduce",
    "asynchronous",
    "barrier",
    "cluster",
    "cluster_copy",
    "cp_async",
    "gemm_pair",
    "launch_control",
    "rng",
    "scale_factors",
    "tma_rows",
    "warp",
    "warp_matrix",
)


_MODULES = {name: import_module(f".{name}", __name__) for name in (*_OF_BLOCKS, *_OF_THREADS)}


def _merged(names: tuple[str, ...], table: str) -> dict[Any, Any]:
    return {k: v for name in names for k, v in getattr(_MODULES[name], table, {}).items()}


def _names_in(table: str) -> frozenset[str]:
    return frozenset().union(*(getattr(module, table, ()) for module in _MODULES.values()))


_TILES = _merged(_OF_BLOCKS, "TILES")

RULES = Rules(
    {
        **statements.RULES,
        **loops.RULES,
        **stores.RULES,
        **blocks.RULES,
        **_merged(_OF_BLOCKS, "STATEMENTS"),
    },
    {
        **arithmetic.RULES,
        **logic.RULES,
        **memory.RULES,
        ir.Call: statements.emit_call,
    },
    _merged(_OF_BLOCKS, "CALLS"),
    {**_merged(_OF_BLOCKS, "EFFECTS"), **{op: tile_rule(make) for op, make in _TILES.items()}},
)
"""Rules for a block that is one agent."""

THREAD_RULES = Rules(
    _merged(_OF_THREADS, "STATEMENTS"),
    {},
    _merged(_OF_THREADS, "CALLS"),
    {
        **{op: tile_rule_of_threads(make) for op, make in _TILES.items()},
        **_merged(_OF_THREADS, "EFFECTS"),
    },
)
"""What else, and what otherwise, where a block has several roles."""

THREAD_OPERATIONS = frozenset(
    (THREAD_RULES.calls.keys() | THREAD_RULES.effects.keys())
    - (RULES.calls.keys() | RULES.effects.keys())
)
"""Operations that need several agents, or the thread index."""

ASYNCHRONOUS = _names_in("ASYNCHRONOUS")
"""Tile operations that complete later."""

EACH_THREAD = _names_in("EACH_THREAD")
"""Operations that every thread does where no parallel loop distributes them."""

SYNCHRONIZING = _names_in("SYNCHRONIZING")
"""Operations that threads wait at, or arrive at."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for module in _MODULES.values()
    for function in getattr(module, "FUNCTIONS", ())
}
"""What the generated source calls, by name."""

SLICES = _merged(_OF_BLOCKS, "SLICES")
"""By `Dependence.rule`, the elements read that elements written depend on: a function of the event,
what it wrote, the elements of that, a read and its number."""


def overwritten(call: ir.Call) -> ir.Region | None:
    """The region that a tile operation writes whole whatever was in it, if any."""
    make = _TILES.get(call.op)
    found: ir.Region | None = None if make is None else make.overwritten(call)
    return found
