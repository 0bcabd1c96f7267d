"""Sanitized launches: the watched run, and the traced one that follows where values are not finite.

The watched run computes what the caller gets. Only if an output holds NaN or infinity the launch
is done again, traced and on copies, to name the operation that made the first one: kernels with
finite values pay nothing for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.reports import Report, element_name, source_line
from tlmatrix.interpreter.watch.monitor import Monitor
from tlmatrix.interpreter.watch.nonfinite import Born, Tracer

from .lowered import over_budget
from .programs import written_at
from .signature import LayoutError

if TYPE_CHECKING:
    from tlmatrix.interpreter.analysis.ownership import Fault
    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.program import Program, Watch
    from tlmatrix.interpreter.sync.externs import BlockLaunch

    from .kernel import InterpretedKernel
    from .session import Session

    Execute = Callable[[list[Any], Any, bool], Iterator[BlockLaunch]]


def run_sanitized(
    kernel: InterpretedKernel,
    session: Session,
    values: list[Any],
    symbols: Mapping[str, int],
    execute: Execute,
) -> Iterator[BlockLaunch]:
    """Run a kernel sanitized; `execute(values, watch, traced)` runs one variant of it.

    Of a kernel that waits for flags yields the blocks, to be run before going on.

    Raises:
        SanitizerError: if there are reports and the session wants them raised.
        InterpreterError: for a fault that leaves nothing to go on with; reported before.
    """
    program = kernel.variant(session).program
    watch = program.watch
    assert watch is not None
    outputs = kernel.outputs
    tensors = {
        p.name: v.detach() if v.requires_grad else v
        for p, v in zip(program.parameters, values, strict=True)
        if isinstance(v, torch.Tensor)
    }

    def unordered(data: str, line: int, several: bool) -> bool:
        return kernel.lowered_code.is_unordered(data, line, several=several)

    monitor = Monitor(program, session, tensors, outputs, unordered)
    usage = monitor.usage
    written = {n for n, u in usage.items() if u & {"write", "atomic"} and n in tensors}
    # A kernel that waits cannot run again: what it waited for has gone on.
    tracing = "nonfinite" in session.sanitizers and not program.waits
    before = {}
    if tracing:
        updated = (n for n in written - outputs if usage[n] & {"read", "atomic"})
        before = {monitor.aliases.get(n, n): tensors[n].clone() for n in updated}
    reports = []
    if "budget" in session.sanitizers:
        reports = over_budget(program.name, watch.shared, watch.tensor, session.arch)
    if "lanes" in session.sanitizers and watch.misplaced:
        reports += _faults("lanes", kernel.misplaced, program)
    if "races" in session.sanitizers and watch.copied_last:
        reports += _faults("races", kernel.frees_early, program)
    passed = _passed_by_flags(watch, monitor) if "races" in session.sanitizers else ()
    if passed:
        early = [fault for fault in kernel.sets_early if fault.buffer in passed]
        reports += _faults("races", early, program)
    if "alignment" in session.sanitizers:
        reports += misaligned_arguments(kernel, values, symbols, program)
    try:
        yield from execute(values, monitor, False)
    except InterpreterError as error:
        reports += monitor.reports()
        if "budget" in session.sanitizers and isinstance(error, LayoutError):
            sites = (s for s in watch.sites if s.buffer == error.buffer)
            location = next((s.location for s in sites), None)
            reports.append(_over_budget(program, location, error.buffer, str(error)))
        session.add(reports)
        raise
    reports += monitor.finish()
    if tracing:
        found = [
            n
            for n in sorted(written)
            if _not_finite(tensors[n], n, monitor, (program.source, n) in session.settled)
        ]
        if found:
            # Parameters that are one tensor stay one; what is only written needs no content.
            copies: dict[str, torch.Tensor] = {}
            again = []
            for p, v in zip(program.parameters, values, strict=True):
                first = monitor.aliases.get(p.name, p.name)
                if p.name in written and first not in copies:
                    copies[first] = before.get(first, v).clone()
                again.append(copies.get(first, v))
            reports += _traced(kernel, session, execute(again, Tracer(), True), found)
    session.add(reports)


def _passed_by_flags(watch: Watch, monitor: Monitor) -> frozenset[str]:
    """Tensors that a block may store and release by a flag to other blocks, or to streams."""
    if not any(site.orders and site.releases for site in watch.sites):
        return frozenset()
    return frozenset(
        name
        for name, actions in watch.usage.items()
        if "write" in actions and ("read" in actions or monitor.is_shared(name))
    )


def _not_finite(tensor: torch.Tensor, name: str, monitor: Monitor, meant: bool) -> bool:
    """Whether an output that the kernel wrote is not finite; `meant`: its infinities are."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    if tensor.element_size() == 1:
        tensor = tensor.float()
    # The sum in the tensor's own dtype is the fastest, and may overflow.
    if math.isfinite(tensor.sum()) or math.isfinite(tensor.sum(dtype=torch.float32)):
        return False
    stored = monitor.shadows[name].stored
    if stored is not None:
        tensor = tensor[torch.from_numpy(stored)]
    return bool(torch.isnan(tensor).any()) or (not meant and bool(torch.isinf(tensor).any()))


def _traced(
    kernel: InterpretedKernel, session: Session, run: Iterator[BlockLaunch], outputs: list[str]
) -> list[Report]:
    """The first operation that made a value not finite, by a traced run on copies."""
    program = kernel.variant(session, traced=True).program
    try:
        for _ in run:
            raise AssertionError("a kernel that waits for flags is not traced")
    except Born as born:
        assert program.watch is not None
        site = program.watch.sites[born.site]
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
                f"it reaches {', '.join(outputs)}",
            )
        ]
    watched = kernel.variant(session).program.source
    session.settled.update((watched, name) for name in outputs)
    return []


def misaligned_arguments(
    kernel: InterpretedKernel,
    values: list[Any],
    symbols: Mapping[str, int],
    program: Program | None = None,
) -> list[Report]:
    """Reports of arguments that are not aligned to the widest access that TileLang lowers them to.

    Args:
        kernel: the launched kernel.
        values: the argument of each parameter.
        symbols: the symbolic dimensions of the launch.
        program: a sanitized variant, which knows the lines of accesses; without one, the reports
            have the line of the kernel.
    """
    found = []
    for fault in kernel.misaligned(values, symbols):
        sites = program.watch.sites if program is not None and program.watch is not None else ()
        site = next((s for s in sites if s.buffer == fault.name), None)
        file, _, line = written_at(kernel.prim_func).rpartition(":")
        where = source_line(site.location) if site is not None else (file, int(line or 0))
        found.append(
            Report(
                "alignment", kernel.name, *where, fault.name, (), None, fault.message,
                tensor=fault.tensor,
            )
        )  # fmt: skip
    return found


def _faults(sanitizer: str, faults: Sequence[Fault], program: Program) -> list[Report]:
    """Statements that are wrong in the code that TileLang lowers the kernel to."""
    return [
        Report(
            sanitizer, program.name, *source_line(fault.location), fault.buffer, (), None,
            fault.message, hint=fault.hint,
        )
        for fault in faults
    ]  # fmt: skip


def _over_budget(program: Program, location: Location | None, buffer: str, message: str) -> Report:
    return Report("budget", program.name, *source_line(location), buffer, (), None, message)
