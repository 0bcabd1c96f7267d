"""Classifies exceptions of CUDA, its compilers and its allocator by their messages.

Compile errors, launch failures and out-of-memory errors of PyTorch, TileLang's runtime and nvcc
share few exception types, mostly `RuntimeError`. The messages matched here are those of PyTorch
2.9 to 2.13 and TileLang 0.1.15.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tlmatrix.interpreter.errors import EMPTY_GRID, EMPTY_TENSOR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

FaultKind = Literal["compile", "launch", "memory", "disk"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_PROBE = 1 << 20
"""Bytes of a file by which a disk is tried."""
_LINES = 12
"""Lines of a compiler's message that a fault keeps."""
_NVCC = ("\nCompilation error:\n", "NVCC compilation timed out", "Compilation Failed! ")
"""TileLang's prefixes of nvcc's output (`tilelang/contrib/nvcc.py`, `jit/adapter/libgen.py`)."""
_COMPILING = ("_compile_and_create_adapter",)
"""TileLang's function that compiles a traced kernel."""
_ENTRY = re.compile(
    r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+?)(?:_kernel)?\s*\("
)
_REQUESTED = re.compile(r"[Tt]ried to allocate ([\d.]+ (?:bytes|[KMGT]iB))")
_FREE = re.compile(
    r"total capacity of ([\d.]+ [KMGT]iB) of which ([\d.]+ (?:bytes|[KMGT]iB)) is free"
)
_LAUNCH = re.compile(
    r"CUDA error: (?P<torch>[^\n]+)"
    r"|(?P<driver>CUDA_ERROR_\w+)"
    r"|(?P<runtime>cudaError\w+)"
    r"|(?P<shared>Failed to set the allowed dynamic shared memory size to \d+)"
    r"|CUDALaunch Error: (?P<tvm>[^\n]+)"
    r"|\bCUDA: (?P<check>[^\n]+)"
)
_DESCRIPTOR = re.compile(
    r"Invalid TMA descriptor arguments for \w+:\s*\n((?: *\[\d+\] [^\n]*\n?)+)"
)
_REJECTED = re.compile(
    r"kernel (\w+) cannot be launched: ([^:\n]+): ([^;\n]+)(?:[^\n]*\n  at (\S+), in kernel)?"
)
"""The interpreter's message for a launch that TileLang's host code rejects: the kernel, the reason,
the tensor or grid, and the source location (`interpreter/errors.py`)."""
_MEMORY = re.compile(
    r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|CUDA error: out of memory|CUDA: out of memory|can't allocate memory"
)


class DiskError(OSError):
    """Temporary files of a compiler cannot be written."""


@dataclass(frozen=True)
class DeviceFault:
    """A failed compilation, launch or allocation.

    Attributes:
        kind: `compile`, `launch`, `memory`, or `disk` (no space for a file).
        message: one line for a title.
        kernel: the kernel, "" if unknown.
        detail: more lines of the tool's output; of `disk`, the file or folder.
        launch_error: of a launch, `empty` (a grid without blocks, a TMA descriptor without
            elements), `descriptor` (another invalid TMA descriptor), or "".
        source: `file:line` of the launch, "" if unknown.
        requested, free, total: amounts of memory as PyTorch prints them (`20.00 GiB`), or "".
    """

    kind: FaultKind
    message: str
    kernel: str = ""
    detail: str = ""
    launch_error: Literal["", "empty", "descriptor"] = ""
    source: str = ""
    requested: str = ""
    free: str = ""
    total: str = ""


def classify_fault(error: BaseException) -> DeviceFault | None:
    """Classify an exception; None if it is not about the GPU, its compilers, memory or disk."""
    message = str(error)
    if isinstance(error, OSError) and (isinstance(error, DiskError) or error.errno in _FULL):
        return _disk(error)
    exhausted = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if exhausted or _MEMORY.search(message):
        return _memory(message or type(error).__name__)
    if any(mark in message for mark in _NVCC):
        full = disk_error(message)
        return _disk(full) if full is not None else _nvcc_error(message)
    if any(frame.f_code.co_name in _COMPILING for frame in _frames(error)):
        return _tilelang_error(error, message)
    return _launch(error, message)


def _disk(error: OSError) -> DeviceFault:
    folder = error.filename or tempfile.gettempdir()
    return DeviceFault("disk", (error.strerror or str(error)).lower(), detail=str(folder))


def disk_error(output: str) -> DiskError | None:
    """Why a compiler with this output could not write its temporary files; None if it could.

    nvcc often prints nothing of a full disk, so a file is written where it writes its own.
    """
    folder = os.environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE))
    except OSError as error:
        return DiskError(error.errno, error.strerror, folder)
    if _NO_SPACE.search(output):
        return DiskError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
    return None


def _memory(message: str) -> DeviceFault:
    requested, free = _REQUESTED.search(message), _FREE.search(message)
    first = message.strip().partition("\n")[0]
    return DeviceFault(
        "memory",
        first,
        requested=requested[1] if requested else "",
        free=free[2] if free else "",
        total=free[1] if free else "",
    )


def _nvcc_error(message: str) -> DeviceFault:
    """Parse TileLang's report of nvcc: the source, the output of nvcc, and the command."""
    mark = next(mark for mark in _NVCC if mark in message)
    source, _, after = message.partition(mark)
    output = after if mark == _NVCC[0] else mark + after
    output = re.split(r"\nCommand: ", output)[0]
    lines = [
        re.sub(r"^/\S*/(?=[\w.]+\()", "", line) for line in output.splitlines() if line.strip()
    ]
    names = dict.fromkeys(_ENTRY.findall(source or after))
    # Skip the warnings before the first error, most of them about TileLang's own headers.
    first = next((at for at, line in enumerate(lines) if "error" in line.lower()), 0)
    errors = lines[first:]
    detail = errors if len(errors) <= _LINES else [*errors[: _LINES - 1], errors[-1]]
    title = errors[0].strip() if errors else "nvcc printed no message"
    return DeviceFault("compile", title, kernel=" and ".join(names), detail="\n".join(detail))


def _tilelang_error(error: BaseException, message: str) -> DeviceFault:
    lines = message.strip().splitlines() or [type(error).__name__]
    return DeviceFault(
        "compile",
        f"{type(error).__name__}: {lines[0].strip()}",
        kernel=_compiling_kernel(error),
        detail="\n".join(lines[:_LINES]) if len(lines) > 1 else "",
    )


def _launch(error: BaseException, message: str) -> DeviceFault | None:
    if not isinstance(error, RuntimeError):
        return None
    rejected = _REJECTED.search(message)
    if rejected is not None:
        kernel, reason, what, source = rejected.groups()
        return DeviceFault(
            "launch", reason, kernel, what, launch_error="empty", source=source or ""
        )
    issues = _DESCRIPTOR.search(message)
    if issues is not None:
        return _descriptor(issues[1], message)
    found = _LAUNCH.search(message)
    if found is None:
        return None
    reason = next(text for text in found.groups() if text).strip()
    name = re.search(r"// func_name=(\w+)|in kernel (\w+)", message)
    grid = re.search(r"grid=\([^)]*\)(?:,?\s*block=\([^)]*\))?", message)
    empty = reason.startswith(EMPTY_GRID)
    return DeviceFault(
        "launch",
        EMPTY_GRID if empty else reason,
        kernel=re.sub(r"_kernel$", "", name[1] or name[2]) if name else "",
        detail=" ".join(grid[0].split()) if grid else "",
        launch_error="empty" if empty else "",
    )


def _descriptor(issues: str, message: str) -> DeviceFault:
    """Parse TileLang's list of what is wrong with a TMA descriptor; it does not name the kernel."""
    problems = [re.sub(r"^ *\[\d+\] ", "", line) for line in issues.splitlines() if line.strip()]
    dims = re.search(r"globalDim +(\[[^\]]*\])", message)
    empty = any(line.startswith("globalDim[") and "non-zero" in line for line in problems)
    # Without the numbers, so that all cases with this fault have the same title.
    first = problems[0].partition(", but ")[0]
    return DeviceFault(
        "launch",
        EMPTY_TENSOR if empty else f"invalid TMA descriptor: {first}",
        detail=f"globalDim {dims[1]}" if dims else "",
        launch_error="empty" if empty else "descriptor",
    )


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames an exception passed through, outermost first."""
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame
        step = step.tb_next


def _compiling_kernel(error: BaseException) -> str:
    """The name of the kernel that TileLang was compiling."""
    for frame in _frames(error):
        if frame.f_code.co_name in _COMPILING:
            for value in frame.f_locals.values():
                if type(value).__name__ == "PrimFunc":
                    return str(value.attrs["global_symbol"])
    return ""
