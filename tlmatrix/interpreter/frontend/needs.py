"""What a kernel needs of a block's memory, and what no GPU of an architecture has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.budget import shared_memory, tensor_memory
from tlmatrix.interpreter.gpu import shared_memory_per_block
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ir.rewrites import normalized
from tlmatrix.interpreter.reports import Report, source_line
from tlmatrix.interpreter.sync.externs import is_modelled

if TYPE_CHECKING:
    from tlmatrix.interpreter.program import MemoryNeed

_TENSOR_COLUMNS = 512
"""Columns of tensor memory that a multiprocessor has (PTX ISA, "Tensor Memory")."""


def memory_faults(func: Any, arch: str) -> list[Report]:
    """Reports of `budget` about a traced PrimFunc, which is neither generated nor run."""
    kernel = normalized(read_all(saved(func)), is_modelled)
    return over_budget(kernel.name, shared_memory(kernel), tensor_memory(kernel), arch)


def over_budget(
    name: str, shared: MemoryNeed | None, tensor: MemoryNeed | None, arch: str
) -> list[Report]:
    """Reports about memory that the kernel `name` needs and no block can have."""
    found = []
    limit = shared_memory_per_block(arch)
    if shared is not None and shared.size > limit:
        message = (
            f"the kernel needs about {shared.size} bytes of shared memory at once, {arch} "
            f"has {limit}: {', '.join(shared.buffers)}"
        )
        found.append(_report(name, shared, message))
    if tensor is not None and tensor.size > _TENSOR_COLUMNS:
        message = (
            f"the kernel needs {tensor.size} columns of tensor memory, there are "
            f"{_TENSOR_COLUMNS}: {', '.join(tensor.buffers)}"
        )
        found.append(_report(name, tensor, message))
    return found


def _report(name: str, need: MemoryNeed, message: str) -> Report:
    return Report("budget", name, *source_line(need.location), need.largest, (), None, message)
