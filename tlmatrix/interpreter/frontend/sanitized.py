"""Sanitized launches: the watched run, and the traced one that follows where values are not finite.

The watched run computes what the caller gets. Only if an output holds NaN or infinity the launch
is done again, traced and on copies, to name the operation that made the first one: kernels whose
values are finite pay nothing for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.frontend.layouts import LayoutError
from tlmatrix.interpreter.reports import Report, element_name, source_line
from tlmatrix.interpreter.runtime.monitor import Monitor
from tlmatrix.interpreter.runtime.tracer import Born, Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tlmatrix.interpreter.frontend.kernel import InterpretedKernel
    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.program import Program, Site
    from tlmatrix.interpreter.session import Session
    from tlmatrix.interpreter.sync.dispatch import BlockLaunch

__all__ = ["run_sanitized"]

_SHARED_BYTES = {
    "sm_80": 166912,
    "sm_86": 101376,
    "sm_87": 166912,
    "sm_89": 101376,
    "sm_90": 232448,
    "sm_100": 232448,
    "sm_103": 232448,
    "sm_120": 101376,
}
"""Shared memory that one block can have, in bytes."""
_TENSOR_COLUMNS = 512
"""Columns of tensor memory that a multiprocessor has (PTX ISA, "Tensor Memory")."""


def run_sanitized(
    kernel: InterpretedKernel,
    session: Session,
    values: list[Any],
    execute: Callable[[list[Any], Any, bool], Iterator[BlockLaunch]],
) -> Iterator[BlockLaunch]:
    """Run a kernel sanitized; `execute(values, watch, traced)` runs one variant of it.

    Of a kernel that waits for flags yields the blocks, to be run before going on.

    Raises:
        SanitizerError: if there are reports and the session wants them raised.
        InterpreterError: for a fault that leaves nothing to go on with; reported before.
    """
    program = kernel.variant(session, traced=False).program
    parameters = program.parameters
    outputs = frozenset(parameters[k].name for k in kernel.out_idx)
    tensors = {
        p.name: v.detach()
        for p, v in zip(parameters, values, strict=True)
        if isinstance(v, torch.Tensor)
    }
    monitor = Monitor(program, session, tensors, outputs)
    watch = program.watch
    assert watch is not None
    usage = monitor.usage
    written = {n for n, u in usage.items() if u & {"write", "atomic"} and n in tensors}
    before = {}
    if "nonfinite" in session.sanitizers:
        updated = (n for n in written - outputs if usage[n] & {"read", "atomic"})
        before = {monitor.aliases.get(n, n): tensors[n].clone() for n in updated}
    reports = _budget(program, session)
    try:
        yield from execute(values, monitor, False)
    except InterpreterError as error:
        reports += monitor.reports()
        if "budget" in session.sanitizers and isinstance(error, LayoutError):
            sites = (s for s in watch.sites if s.buffer == error.buffer)
            location = next((s.location for s in sites), None)
            reports.append(_whole(program, "budget", location, error.buffer, str(error)))
        session.add(reports)
        raise
    reports += monitor.finish()
    # A kernel that waits cannot run again: what it waited for has gone on.
    if "nonfinite" in session.sanitizers and not program.waits:
        strange = [n for n in sorted(written) if _strange(tensors[n], monitor, n, session, program)]
        if strange:
            # Parameters that are one tensor stay one; what is only written needs no content.
            copies: dict[str, torch.Tensor] = {}
            again = []
            for p, v in zip(parameters, values, strict=True):
                first = monitor.aliases.get(p.name, p.name)
                if p.name in written and first not in copies:
                    copies[first] = before.get(first, v).clone()
                again.append(copies.get(first, v))
            reports += _traced(kernel, session, program, again, execute, strange)
    session.add(reports)


def _strange(
    tensor: torch.Tensor, monitor: Monitor, name: str, session: Session, program: Program
) -> bool:
    """Whether an output that the kernel wrote is not finite, and not known to be meant so."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    if tensor.element_size() == 1:
        tensor = tensor.float()
    total = tensor.sum(dtype=torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    if torch.isfinite(total):
        return False
    written_by = monitor.shadows[name].written_by
    if written_by is not None:
        tensor = tensor[torch.from_numpy(written_by != 0)]
    return bool(torch.isnan(tensor).any()) or (
        (program.name, program.source, name) not in session.settled
        and bool(torch.isinf(tensor).any())
    )


def _traced(
    kernel: InterpretedKernel,
    session: Session,
    program: Program,
    values: list[Any],
    execute: Callable[[list[Any], Any, bool], Iterator[BlockLaunch]],
    strange: list[str],
) -> list[Report]:
    """Run again on copies, to find the first operation that made a value not finite."""
    try:
        for _ in execute(values, Tracer(), True):
            raise AssertionError("a kernel that waits for flags is not traced")
    except Born as born:
        site = _sites(kernel, session)[born.site]
        element = element_name(site.buffer, born.index)
        return [
            Report(
                "nonfinite",
                program.name,
                *source_line(site.location),
                site.buffer,
                born.index,
                born.block,
                f"{element} becomes {born.what}, from operands that hold none; "
                f"it reaches {', '.join(strange)}",
            )
        ]
    session.settled.update((program.name, program.source, name) for name in strange)
    return []


def _sites(kernel: InterpretedKernel, session: Session) -> tuple[Site, ...]:
    watch = kernel.variant(session, traced=True).program.watch
    assert watch is not None
    return watch.sites


def _budget(program: Program, session: Session) -> list[Report]:
    if "budget" not in session.sanitizers:
        return []
    found = []
    shared, tensor = program.shared, program.tensor
    limit = _SHARED_BYTES.get(session.arch.rstrip("af"))
    if shared is not None and limit is not None and shared.size > limit:
        message = (
            f"the kernel needs about {shared.size} bytes of shared memory at once, {session.arch} "
            f"has {limit}: {', '.join(shared.buffers)}"
        )
        found.append(_whole(program, "budget", shared.location, shared.largest, message))
    if tensor is not None and tensor.size > _TENSOR_COLUMNS:
        message = (
            f"the kernel needs {tensor.size} columns of tensor memory, there are "
            f"{_TENSOR_COLUMNS}: {', '.join(tensor.buffers)}"
        )
        found.append(_whole(program, "budget", tensor.location, tensor.largest, message))
    return found


def _whole(
    program: Program, sanitizer: str, location: Location | None, buffer: str, message: str
) -> Report:
    """A finding about a buffer, or the kernel, as a whole."""
    return Report(sanitizer, program.name, *source_line(location), buffer, (), None, message)
