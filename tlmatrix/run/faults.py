"""Findings for device faults: a kernel does not compile, a launch fails, memory or disk run out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.backend import DeviceFault, DiskError, classify_fault
from tlmatrix.check.finding import Finding
from tlmatrix.tracebacks import short_path, user_traceback

if TYPE_CHECKING:
    from tlmatrix.backend import Backend

_DURING = {
    "entry": "in the code under test",
    "problem": "while building the case",
    "judge": "while judging the case (reference and checks)",
}
_NO_MEMORY = {
    "entry": "its own buffers do not fit beside the case's inputs of {inputs}",
    "problem": "the case is too large for this GPU, or other processes hold its memory: give each "
    "GPU fewer workers (-n), or leave the case to larger ones with `constraints`",
    "judge": "float64 copies do not fit beside the case's inputs of {inputs}: give each GPU fewer "
    "workers (-n), or make the case smaller",
}
"""What to do, by the phase that ran out of memory."""
_LAUNCHES = {
    "": "more shared memory, registers or threads than a block of this GPU may have; "
    "`tlmatrix run --backend compile` counts them",
    "empty": "TileLang launches no kernel without blocks, and TMA copies of no empty tensor: where "
    "an input is empty return before the call, or, if empty inputs are invalid, list sizes from 1",
    "descriptor": "TMA needs addresses and rows that are multiples of 16 bytes; a copy with "
    "`disable_tma=True` does without it",
}
"""What to do, by the kind of launch error."""


def fault_finding(
    error: BaseException, backend: Backend, phase: str, inputs: int
) -> Finding | None:
    """The finding for an exception; None if it is not about the GPU, the compiler, memory or disk.

    Args:
        error: the exception.
        backend: the backend of the case.
        phase: the phase that raised: `problem`, `entry` or `judge`.
        inputs: bytes of the case's inputs.
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
        case "disk":
            return _disk(error, fault)


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
    title = f"out of memory {_DURING[phase]}"
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


def _disk(error: BaseException, fault: DeviceFault) -> Finding:
    path = Path(fault.detail)
    there = next((each for each in (path, *path.parents) if each.exists()), None)
    free = f" ({_amount(shutil.disk_usage(there).free)} free now)" if there is not None else ""
    return Finding(
        check="disk",
        title=f"{fault.message}: {path}{free}",
        hint="the machine is at fault, not the kernel: free space there, or set TMPDIR (for caches "
        "TLMATRIX_CACHE, TILELANG_CACHE_DIR) to a folder on another disk, and run the case again",
        detail=None if isinstance(error, DiskError) else user_traceback(error),
        pattern=fault.message,
    )


def _amount(size: int) -> str:
    """A number of bytes, formatted as PyTorch does."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


def _launch(error: BaseException, fault: DeviceFault, backend: Backend) -> Finding:
    name = fault.kernel or "a kernel"
    if not backend.broken():
        return Finding(
            check="launch",
            title=f"{name} cannot be launched: {fault.message}",
            where=fault.detail or None,
            hint=_LAUNCHES[fault.launch_error],
            detail=user_traceback(error),
            source=short_path(fault.source) if fault.source else None,
            kernel=fault.kernel if fault.source else None,
            pattern=fault.message,
        )
    return Finding(
        check="launch",
        title=f"{name} failed on the GPU: {fault.message}; the CUDA context is lost",
        where=fault.detail or None,
        hint="later results of this process would be unreliable, so it runs no more cases. The "
        "interpreter's sanitizers (`tlmatrix repro … --backend interpreter`) and "
        "`compute-sanitizer tlmatrix repro …` name the access; CUDA_LAUNCH_BLOCKING=1 names the "
        "launch",
        detail=user_traceback(error),
        pattern=fault.message,
    )
