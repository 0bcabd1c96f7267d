"""What a GPU, its compiler and its allocator say when they fail, told apart.

A kernel that does not compile, one whose launch fails and one that finds no memory reach us as
exceptions of few types (`RuntimeError` most of all), from PyTorch, from TileLang's runtime and
from nvcc. The messages matched here are those of PyTorch 2.9 to 2.13 and TileLang 0.1.15.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tlmatrix.interpreter.errors import EMPTY_GRID, EMPTY_TENSOR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["Fault", "fault_of"]

FaultKind = Literal["compile", "launch", "memory"]

_LINES = 12
"""Of a compiler's words: the first errors say what is wrong, what follows is their echo."""
_NVCC = ("\nCompilation error:\n", "NVCC compilation timed out", "Compilation Failed! ")
"""How TileLang begins what nvcc said (`tilelang/contrib/nvcc.py`, `jit/adapter/libgen.py`)."""
_COMPILING = ("_compile_and_create_adapter",)
"""The function of TileLang's under which a traced kernel becomes machine code."""
_ENTRY = re.compile(
    r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+?)(?:_kernel)?\s*\("
)
_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ (?:bytes|[KMGT]iB))")
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
_REFUSED = re.compile(
    r"kernel (\w+) cannot be launched: ([^:\n]+): ([^;\n]+)(?:[^\n]*\n  at (\S+), in kernel)?"
)
"""How the interpreter says what TileLang's host code refuses: the kernel, why, of what, and where
(`interpreter/errors.py`)."""
_MEMORY = re.compile(
    r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|CUDA error: out of memory|CUDA: out of memory|can't allocate memory"
)


@dataclass(frozen=True)
class Fault:
    """A failure of the GPU's side: of which kind, about which kernel, and in whose words.

    `words` is one line for a title, `detail` more lines of the tool's own; of a launch `why` is
    what is wrong with it: that it is of nothing (`empty`: a grid of no blocks, a TMA descriptor of
    no elements), or another `descriptor`; "" for anything else. `source` is its file and line.
    `asked`, `free` and `total` are amounts as PyTorch writes them (`20.00 GiB`), "" where nobody
    said.
    """

    kind: FaultKind
    words: str
    kernel: str = ""
    detail: str = ""
    why: Literal["", "empty", "descriptor"] = ""
    source: str = ""
    asked: str = ""
    free: str = ""
    total: str = ""


def fault_of(error: BaseException) -> Fault | None:
    """What an exception says about the GPU; None if it is about something else."""
    message = str(error)
    if type(error).__name__ == "OutOfMemoryError" or _MEMORY.search(message):
        return _memory(message)
    if any(mark in message for mark in _NVCC):
        return _refused_by_nvcc(message)
    if any(frame.f_code.co_name in _COMPILING for frame in _frames(error)):
        return _refused_by_tilelang(error, message)
    return _launch(error, message)


def _memory(message: str) -> Fault:
    asked, free = _ASKED.search(message), _FREE.search(message)
    first = message.strip().partition("\n")[0]
    return Fault(
        "memory",
        first,
        asked=asked[1] if asked else "",
        free=free[2] if free else "",
        total=free[1] if free else "",
    )


def _refused_by_nvcc(message: str) -> Fault:
    """Between the source it was given and the command it was called by stand nvcc's own lines."""
    mark = next(mark for mark in _NVCC if mark in message)
    source, _, after = message.partition(mark)
    said = after if mark == _NVCC[0] else mark + after
    said = re.split(r"\nCommand: ", said)[0]
    lines = [re.sub(r"^/\S*/(?=[\w.]+\()", "", line) for line in said.splitlines() if line.strip()]
    names = dict.fromkeys(_ENTRY.findall(source or after))
    # Before the first error there are warnings, of TileLang's own headers most of all.
    first = next((at for at, line in enumerate(lines) if "error" in line.lower()), 0)
    told = lines[first:]
    detail = told if len(told) <= _LINES else [*told[: _LINES - 1], told[-1]]
    words = told[0].strip() if told else "nvcc said nothing"
    return Fault("compile", words, kernel=" and ".join(names), detail="\n".join(detail))


def _refused_by_tilelang(error: BaseException, message: str) -> Fault:
    lines = message.strip().splitlines() or [type(error).__name__]
    return Fault(
        "compile",
        f"{type(error).__name__}: {lines[0].strip()}",
        kernel=_traced(error),
        detail="\n".join(lines[:_LINES]) if len(lines) > 1 else "",
    )


def _launch(error: BaseException, message: str) -> Fault | None:
    if not isinstance(error, RuntimeError):
        return None
    refused = _REFUSED.search(message)
    if refused is not None:
        kernel, words, what, source = refused.groups()
        return Fault("launch", words, kernel, what, why="empty", source=source or "")
    issues = _DESCRIPTOR.search(message)
    if issues is not None:
        return _descriptor(issues[1], message)
    found = _LAUNCH.search(message)
    if found is None:
        return None
    words = next(text for text in found.groups() if text).strip()
    name = re.search(r"// func_name=(\w+)|in kernel (\w+)", message)
    grid = re.search(r"grid=\([^)]*\)(?:,?\s*block=\([^)]*\))?", message)
    empty = words.startswith(EMPTY_GRID)
    return Fault(
        "launch",
        EMPTY_GRID if empty else words,
        kernel=re.sub(r"_kernel$", "", name[1] or name[2]) if name else "",
        detail=" ".join(grid[0].split()) if grid else "",
        why="empty" if empty else "",
    )


def _descriptor(issues: str, message: str) -> Fault:
    """TileLang tells all that is wrong with a descriptor, and not of which kernel it is."""
    said = [re.sub(r"^ *\[\d+\] ", "", line) for line in issues.splitlines() if line.strip()]
    dims = re.search(r"globalDim +(\[[^\]]*\])", message)
    empty = any(line.startswith("globalDim[") and "non-zero" in line for line in said)
    # Without the numbers, so that cases of one fault have one title.
    first = said[0].partition(", but ")[0]
    words = EMPTY_TENSOR if empty else f"invalid TMA descriptor: {first}"
    why: Literal["empty", "descriptor"] = "empty" if empty else "descriptor"
    return Fault("launch", words, detail=f"globalDim {dims[1]}" if dims else "", why=why)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames an exception passed through, outermost first."""
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame
        step = step.tb_next


def _traced(error: BaseException) -> str:
    """The name of the kernel that TileLang was compiling."""
    for frame in _frames(error):
        if frame.f_code.co_name in _COMPILING:
            for value in frame.f_locals.values():
                if type(value).__name__ == "PrimFunc":
                    return str(value.attrs["global_symbol"])
    return ""
