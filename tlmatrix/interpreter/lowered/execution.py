"""Runs the lowered code of a kernel on tensors."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter import runtime
from tlmatrix.interpreter.analysis.expressions import ARITHMETIC, COMPARISONS
from tlmatrix.interpreter.errors import EMPTY_GRID, DeadlockError, LaunchError, Unsupported
from tlmatrix.interpreter.ir import nodes as ir

from . import arithmetic, copies, findings, matrices, scans, threads
from .clocks import WARP, Shadow
from .copies import tensor_map
from .lowering import DescriptorCall, Launch
from .machine import Machine, Watching
from .memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .copies import Descriptor
    from .lowering import LoweredKernel
    from .program import DeviceProgram

_LANES = 4096
"""Lanes that run together; more are faster, up to what caches hold."""
_FUNCTIONS = (
    *arithmetic.FUNCTIONS,
    *copies.FUNCTIONS,
    *threads.FUNCTIONS,
    *matrices.FUNCTIONS,
    *scans.FUNCTIONS,
)


def function_of(program: DeviceProgram) -> Callable[..., Any]:
    """The function of a program's source."""
    names = {
        **runtime.environment(),
        **{f.__name__: f for f in _FUNCTIONS},
        "count": count,
    }
    exec(compile(program.source, f"<lowered {program.name}>", "exec"), names)  # noqa: S102 - our own
    found: Callable[..., Any] = names["kernel"]
    return found


def run(
    kernel: LoweredKernel, values: Sequence[Any], functions: Mapping[str, Any], watching: Watching
) -> dict[str, Memory]:
    """Launch what the host code of a kernel launches, on its arguments.

    Args:
        kernel: the lowered kernel.
        values: an argument for each parameter of the kernel; tensors on the CPU.
        functions: of the kernel's programs by name.
        watching: the sanitizers, and where findings go.

    Returns:
        The memory of each tensor by the name of its parameter, with what was written.

    Raises:
        LaunchError: for a grid that is empty.
        InterpreterError: for what leaves nothing to go on with: a deadlock.
    """
    env, memories = _bound(kernel.kernel, values)
    descriptors: dict[ir.Var, Descriptor] = {}
    with np.errstate(all="ignore"):
        for step in kernel.steps:
            if isinstance(step, ir.Bind):
                if step.var not in env:
                    found = _value(step.value, env)
                    if found is not None:
                        env[step.var] = found
            elif isinstance(step, DescriptorCall):
                descriptors[step.variable] = _descriptor(step, env, memories)
            else:
                program = kernel.programs[step.function]
                _launch(
                    step, program, functions[step.function], env, memories, descriptors, watching
                )
    return {m.name: m for m in memories.values()}


def _bound(kernel: ir.Kernel, values: Sequence[Any]) -> tuple[dict[Any, Any], dict[ir.Var, Memory]]:
    """The variables of parameters, and the memory of tensors by the variable of their data."""
    env: dict[Any, Any] = {}
    memories: dict[ir.Var, Memory] = {}
    for parameter, value in zip(kernel.params, values, strict=True):
        buffer = kernel.buffer_map.get(parameter)
        if buffer is None:
            number = value.item() if isinstance(value, torch.Tensor) else value
            floating = TILE_DTYPES[parameter.dtype].floating
            env[parameter] = np.float32(number) if floating else int(number)
            continue
        memories[buffer.data] = memory_of(buffer, value)
        if isinstance(value, torch.Tensor):
            extents = (*zip(buffer.shape, value.shape, strict=False),)
            strides = (*zip(buffer.strides, value.stride(), strict=False),)
            for expression, size in (*extents, *strides):
                _solve(expression, size, env)
    return env, memories


def _solve(expression: Any, size: int, env: dict[Any, Any]) -> None:
    """Bind the variable of a dimension `v`, or `v * constant`."""
    if isinstance(expression, ir.Var):
        env.setdefault(expression, int(size))
    elif isinstance(expression, ir.Mul) and isinstance(expression.b, ir.IntImm):
        if size % expression.b.value == 0:
            _solve(expression.a, size // expression.b.value, env)
    elif isinstance(expression, ir.Cast):
        _solve(expression.value, size, env)


def memory_of(buffer: ir.Buffer, value: Any) -> Memory:
    """The memory of a tensor, from its first element to its last."""
    if not isinstance(value, torch.Tensor):
        return Memory(buffer.name, np.zeros(0, np.uint8), 0)
    value = value.detach()
    size = value.element_size()
    last = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    length = (last + 1) * size if value.numel() else 0
    storage = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
    first = value.storage_offset() * size
    data = storage[first : first + length].numpy()
    written = np.zeros(length, bool)
    shape = tuple(value.shape) if value.is_contiguous() else None
    return Memory(
        buffer.name, data, length, 0, value.data_ptr() % 16, None, "global", written, shape, size
    )


def _value(node: Any, env: Mapping[Any, Any]) -> Any:
    """The value of an expression of host code; None of what is no arithmetic of sizes."""
    if isinstance(node, ir.IntImm | ir.FloatImm | ir.StringImm):
        return node.value
    if isinstance(node, ir.Var):
        return env.get(node)
    if isinstance(node, ir.Cast):
        return _value(node.value, env)
    if isinstance(node, ir.Select) or (
        isinstance(node, ir.Call) and node.op == "tirx.if_then_else"
    ):
        parts = (
            node.args
            if isinstance(node, ir.Call)
            else (node.condition, node.true_value, node.false_value)
        )
        condition = _value(parts[0], env)
        return None if condition is None else _value(parts[1 if condition else 2], env)
    if isinstance(node, ir.Binary):
        a, b = _value(node.a, env), _value(node.b, env)
        if a is None or b is None:
            return None
        if isinstance(node, ir.Compare):
            return bool(COMPARISONS[node.symbol](a, b))
        if isinstance(node, ir.And | ir.Or):
            return (a and b) if isinstance(node, ir.And) else (a or b)
        return int(ARITHMETIC[type(node)](a, b))
    return None


def _descriptor(
    call: DescriptorCall, env: Mapping[Any, Any], memories: Mapping[ir.Var, Memory]
) -> Descriptor:
    """The tensor map of a call: dtype, rank, address, shape, strides, box, steps, …."""
    _, rank, address, *rest = call.arguments
    numbers = [_value(each, env) for each in rest]
    if None in numbers or address not in memories:
        raise Unsupported(f"the descriptor {call.variable.name} in lowered host code")
    return tensor_map(memories[address], (int(rank.value), *numbers))


def _launch(
    step: Launch,
    program: DeviceProgram,
    function: Callable[..., Any],
    env: Mapping[Any, Any],
    memories: Mapping[ir.Var, Memory],
    descriptors: Mapping[ir.Var, Descriptor],
    watching: Watching,
) -> None:
    """Run one launch, some blocks at a time."""
    grid = tuple(int(_value(extent, env)) for extent in step.grid) or (1,)
    if min(grid) < 1:
        raise LaunchError.of(watching.kernel, EMPTY_GRID, f"grid {grid}")
    shared = 0 if step.shared_bytes is None else int(_value(step.shared_bytes, env))
    shared = max(shared, program.shared_bytes)
    arguments: list[Any] = []
    for each in step.arguments:
        if isinstance(each, ir.Var) and each in memories:
            arguments.append(memories[each])
        elif isinstance(each, ir.Var) and each in descriptors:
            arguments.append(descriptors[each])
        else:
            found = _value(each, env)
            if found is None:
                raise Unsupported(f"an argument of {step.function} in lowered host code")
            arguments.append(found)
    if "races" in watching.sanitizers:
        warps = -(-math.prod(program.threads) // WARP)
        for memory in memories.values():  # what the launch before this one did is over
            if memory.size:
                count = memory.size // memory.itemsize
                memory.shadow = Shadow(memory.itemsize, count, warps, several_blocks=True)
    total = math.prod(grid)
    together = max(1, _LANES // math.prod(program.threads))
    for first in range(0, total, together):
        chosen = np.arange(first, min(first + together, total))
        _run_blocks(program, function, grid, chosen, shared, arguments, watching)


def _run_blocks(
    program: DeviceProgram,
    function: Callable[..., Any],
    grid: tuple[int, ...],
    chosen: Any,
    shared: int,
    arguments: Sequence[Any],
    watching: Watching,
) -> None:
    machine = Machine(program, grid, chosen, shared, watching)
    running = function(machine, *arguments)
    if program.suspends:
        before = -1
        for what in running:
            if machine.progress == before:
                raise DeadlockError(f"no thread can go on: {what}")
            before = machine.progress
    findings.finish(machine)
