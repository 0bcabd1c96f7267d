"""Runs the lowered code of a kernel on tensors."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter import runtime
from tlmatrix.interpreter.analysis.expressions import evaluate
from tlmatrix.interpreter.errors import EMPTY_GRID, DeadlockError, LaunchError, Unsupported
from tlmatrix.interpreter.gpu import WARP
from tlmatrix.interpreter.ir import nodes as ir

from . import arithmetic, copies, findings, matrices, scans, threads
from .clocks import Shadow
from .copies import im2col_map, tensor_map
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


@lru_cache(maxsize=256)
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


def run(kernel: LoweredKernel, values: Sequence[Any], watching: Watching) -> dict[str, Memory]:
    """Launch what the host code of a kernel launches, on its arguments.

    Args:
        kernel: the lowered kernel.
        values: an argument for each parameter of the kernel; tensors on the CPU.
        watching: the sanitizers, and where findings go.

    Returns:
        The memory of each tensor by the name of its parameter, with what was written.

    Raises:
        LaunchError: for a grid that is empty.
        InterpreterError: for what leaves nothing to go on with: a deadlock.
    """
    env, memories = _bound(kernel.kernel, values)
    tensors = tuple(memories)
    with np.errstate(all="ignore"):
        for step in kernel.steps:
            if isinstance(step, ir.Bind):
                if step.var not in env:
                    env[step.var] = _value(step.value, env)
            elif isinstance(step, ir.AllocBuffer):
                memories.append(_workspace(step.buffer, env))
                env[step.buffer.data] = memories[-1]
            elif isinstance(step, DescriptorCall):
                env[step.variable] = _descriptor(step, env)
            else:
                _launch(step, kernel.programs[step.function], env, memories, watching)
    return {m.name: m for m in tensors}


def _bound(kernel: ir.Kernel, values: Sequence[Any]) -> tuple[dict[Any, Any], list[Memory]]:
    """What parameters and variables of their shapes and data are, and the memory of tensors."""
    env: dict[Any, Any] = {}
    memories: list[Memory] = []
    for parameter, value in zip(kernel.params, values, strict=True):
        buffer = kernel.buffer_map.get(parameter)
        if buffer is None:
            number = value.item() if isinstance(value, torch.Tensor) else value
            floating = TILE_DTYPES[parameter.dtype].floating
            env[parameter] = np.float32(number) if floating else int(number)
            continue
        memories.append(memory_of(buffer, value))
        env[buffer.data] = memories[-1]
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


def _workspace(buffer: ir.Buffer, env: Mapping[Any, Any]) -> Memory:
    """Global memory that host code allocates for a call, of no defined content."""
    size = max(1, TILE_DTYPES[buffer.dtype].bytes)
    length = size * math.prod(int(_value(extent, env)) for extent in buffer.shape)
    return Memory(buffer.name, np.full(length, 0xFF, np.uint8), length, itemsize=size)


def _value(node: Any, env: Mapping[Any, Any]) -> Any:
    """The value of an expression of host code; None of what is no arithmetic of sizes."""
    if isinstance(node, ir.Var):
        return env.get(node)
    try:
        return np.asarray(evaluate(node, env)).item()
    except Unsupported:
        return None


def _descriptor(call: DescriptorCall, env: Mapping[Any, Any]) -> Descriptor:
    """The tensor map of a call: dtype, rank, address, shape, strides, box, steps, …."""
    _, *numbers = (_value(each, env) for each in call.arguments)
    if None in numbers:
        raise Unsupported(f"the descriptor {call.variable.name} in lowered host code")
    rank, memory, *rest = numbers
    return (im2col_map if call.im2col else tensor_map)(memory, (rank, *rest))


def _launch(
    step: Launch,
    program: DeviceProgram,
    env: Mapping[Any, Any],
    memories: Sequence[Memory],
    watching: Watching,
) -> None:
    """Run one launch, some blocks at a time."""
    grid = tuple(int(_value(extent, env)) for extent in step.grid) or (1,)
    if min(grid) < 1:
        raise LaunchError.of(watching.kernel, EMPTY_GRID, f"grid {grid}")
    shared = 0 if step.shared_bytes is None else int(_value(step.shared_bytes, env))
    shared = max(shared, program.shared_bytes)
    arguments = [_value(each, env) for each in step.arguments]
    if any(each is None for each in arguments):
        raise Unsupported(f"an argument of {step.function} in lowered host code")
    if "races" in watching.sanitizers:
        warps = -(-math.prod(program.threads) // WARP)
        for memory in memories:  # what the launch before this one did is over
            memory.shadow = None
        blocks = "ordered" if program.by_order else "several"
        for position in program.written:  # there is no race where nothing writes
            memory = getattr(arguments[position], "memory", arguments[position])
            if memory.size:
                size = memory.itemsize
                memory.shadow = Shadow(size, memory.size // size, warps, blocks)
    total = math.prod(grid)
    together = max(1, _LANES // math.prod(program.threads))
    if program.cooperative:
        together = total
    elif program.in_turn:
        together = 1  # lanes that wait would keep those beside them from going on
    for first in range(0, total, together):
        chosen = np.arange(first, min(first + together, total))
        _run_blocks(program, grid, chosen, shared, arguments, watching, memories)


def _run_blocks(
    program: DeviceProgram,
    grid: tuple[int, ...],
    chosen: Any,
    shared: int,
    arguments: Sequence[Any],
    watching: Watching,
    memories: Sequence[Memory],
) -> None:
    machine = Machine(program, grid, chosen, shared, watching, memories)
    running = function_of(program)(machine, *arguments)
    before = -1
    for what in running if program.suspends else ():
        if machine.progress == before:
            raise DeadlockError(f"no thread can go on: {what}")
        before = machine.progress
    findings.finish(machine)
