"""Failures of the GPU's side as findings: no compilation, no launch, no memory.

They are three findings because three people act on them: who wrote the kernel's source, who wrote
its accesses, and who chose the sizes of the case or the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend import DeviceFault, classify_fault
from tlmatrix.check.finding import Finding
from tlmatrix.tracebacks import short_path, user_traceback

if TYPE_CHECKING:
    from tlmatrix.backend import Backend

__all__ = ["fault_finding"]

_WHOSE = {
    "entry": "in the code under test",
    "problem": "making the case",
    "judge": "judging the case (reference and checks)",
}
_NO_MEMORY = {
    "entry": "its own buffers do not fit beside the case's inputs of {inputs}",
    "problem": "the case is too large for this GPU, or other processes hold its memory: give each "
    "GPU fewer workers (-n), or leave the case to larger ones with `constraints`",
    "judge": "float64 copies do not fit beside the case's inputs of {inputs}: give each GPU fewer "
    "workers (-n), or make the case smaller",
}
"""What to do, by the phase that asked."""
_LAUNCHES = {
    "": "more shared memory, registers or threads than a block of this GPU may have; "
    "`tlmatrix run --backend compile` counts them",
    "empty": "TileLang launches no kernel without blocks, and TMA copies of no empty tensor: where "
    "an input is empty return before the call, or, if nobody calls it so, draw sizes from 1 on",
    "descriptor": "TMA needs addresses and rows that are multiples of 16 bytes; a copy with "
    "`disable_tma=True` does without it",
}
"""What to do, by what is wrong with a launch."""


def fault_finding(
    error: BaseException, backend: Backend, phase: str, inputs: int
) -> Finding | None:
    """The finding that an exception is; None if it is not about the GPU, compiler or memory.

    `phase` of the case was under way (`problem`, `entry`, `judge`), whose inputs take `inputs`
    bytes.
    """
    fault = classify_fault(error)
    if fault is None:
        return None
    match fault.kind:
        case "compile":
            return _compile(fault, backend)
        case "memory":
            return _memory(error, fault, phase, inputs)
        case "launch":
            return _launch(error, fault, backend)


def _compile(fault: DeviceFault, backend: Backend) -> Finding:
    name = fault.kernel or "a kernel"
    return Finding(
        check="compile",
        title=f"{name} does not compile for {backend.arch}: {fault.message}",
        hint="`tlmatrix run --backend compile` shows it without a GPU, for any architecture",
        detail=fault.detail or None,
        pattern=f"{fault.kernel}: {fault.message}",
    )


def _memory(error: BaseException, fault: DeviceFault, phase: str, inputs: int) -> Finding:
    title = f"out of memory {_WHOSE[phase]}"
    if fault.requested:
        title += f": asked for {fault.requested}"
        if fault.free:
            title += f" with {fault.free} free of {fault.total}"
    else:
        title += f": {fault.message}"
    return Finding(
        check="memory",
        title=title,
        hint=_NO_MEMORY[phase].format(inputs=_amount(inputs)),
        detail=user_traceback(error),
        pattern=phase,
    )


def _amount(size: int) -> str:
    """Bytes as PyTorch writes them."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


def _launch(error: BaseException, fault: DeviceFault, backend: Backend) -> Finding:
    who = fault.kernel or "a kernel"
    if not backend.broken():
        return Finding(
            check="launch",
            title=f"{who} cannot be launched: {fault.message}",
            where=fault.detail or None,
            hint=_LAUNCHES[fault.launch_error],
            detail=user_traceback(error),
            source=short_path(fault.source) if fault.source else None,
            kernel=fault.kernel if fault.source else None,
            pattern=fault.message,
        )
    return Finding(
        check="launch",
        title=f"{who} failed on the GPU: {fault.message}; the CUDA context is lost",
        where=fault.detail or None,
        hint="nothing after it in this process could be believed, so nothing more runs there. The "
        "access is named by the interpreter's sanitizers (`tlmatrix repro … --backend "
        "interpreter`) and by `compute-sanitizer tlmatrix repro …`; CUDA_LAUNCH_BLOCKING=1 names "
        "the launch",
        detail=user_traceback(error),
        pattern=fault.message,
    )
