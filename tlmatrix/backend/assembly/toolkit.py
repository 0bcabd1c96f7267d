"""Compiles CUDA source with nvcc and ptxas, and parses the resource usage that they report."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.faults import disk_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_SECONDS = 900.0


class AssemblerError(Exception):
    """nvcc or ptxas rejects a kernel; the message is the tool's."""


@dataclass(frozen=True)
class Toolkit:
    """An nvcc, its version, and its target architectures (`sm_90`, without suffix letters)."""

    nvcc: Path
    version: str
    architectures: frozenset[str]

    def lacks(self, arch: str) -> str:
        """The reason why this nvcc cannot assemble for an architecture; "" if it can."""
        if arch.rstrip("af") in self.architectures:
            return ""
        return f"nvcc {self.version} does not know {arch}"

    def assemble(
        self,
        source: str,
        arch: str,
        kernels: Mapping[str, Mapping[str, Any]],
        flags: Sequence[str],
    ) -> tuple[MachineCode, ...]:
        """Compile a CUDA source to machine code; `kernels` come from `lowering_process`.

        Raises:
            AssemblerError: nvcc or ptxas rejects the kernel.
            DiskError: temporary files cannot be written.
        """
        with tempfile.TemporaryDirectory(prefix="tlmatrix-") as folder:
            ptx = self._to_ptx(source, arch, flags, Path(folder))
            cubin = Path(folder) / "kernel.cubin"
            levels = [flag for flag in flags if flag.startswith("--ptxas-options")]
            output = self._run(["-cubin", f"-arch={arch}", "-Xptxas=-v", *levels, ptx, cubin])
            text = ptx.read_text(encoding="utf-8")
        columns = _tensor_memory(source)
        found = []
        for name, lines in _entries(output).items():
            launch = kernels.get(name, {})
            found.append(_machine_code(name, lines, text, launch, columns))
        return tuple(found)

    def ptx(self, source: str, arch: str, flags: Sequence[str]) -> str:
        """Compile a CUDA source to PTX.

        Raises:
            AssemblerError: nvcc fails.
        """
        with tempfile.TemporaryDirectory(prefix="tlmatrix-") as folder:
            return self._to_ptx(source, arch, flags, Path(folder)).read_text(encoding="utf-8")

    def _to_ptx(self, source: str, arch: str, flags: Sequence[str], folder: Path) -> Path:
        code, ptx = folder / "kernel.cu", folder / "kernel.ptx"
        code.write_text(source, encoding="utf-8")
        self._run(["-ptx", f"-arch={arch}", "-std=c++20", "-O3", *_include(), *flags, code, ptx])
        return ptx

    def _run(self, arguments: Sequence[str | Path]) -> str:
        *options, code, result = map(str, arguments)
        command = [str(self.nvcc), *options, "-o", result, code]
        try:
            done = subprocess.run(  # noqa: S603 - the user's own compiler
                command, check=False, capture_output=True, text=True, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise AssemblerError(f"nvcc did not end in {_SECONDS:g} s") from error
        if done.returncode:
            output = (done.stderr or done.stdout).strip()
            if full := disk_error(output):
                raise full
            raise AssemblerError(output)
        return done.stdout + done.stderr


@cache
def find_toolkit() -> Toolkit | None:
    """Find the nvcc that TileLang would use, or else the one on PATH; None if there is neither."""
    from tilelang.env import CUDA_HOME

    candidates = [Path(CUDA_HOME) / "bin" / "nvcc"] if CUDA_HOME else []
    if on_path := shutil.which("nvcc"):
        candidates.append(Path(on_path))
    for nvcc in candidates:
        if not nvcc.is_file():
            continue
        version = _output([str(nvcc), "--version"])
        release = re.search(r"\bV([0-9.]+)", version)
        codes = _output([str(nvcc), "--list-gpu-code"]).split()
        return Toolkit(nvcc, release[1] if release else "of unknown version", frozenset(codes))
    return None


def _output(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    return done.stdout


def _include() -> list[str]:
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    return [f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}"]


def flags_for(configs: Mapping[str, Any], flags: Sequence[str]) -> list[str]:
    """Translate a kernel's pass configurations and compile flags to options of nvcc."""
    found = []
    for flag in flags:
        found += shlex.split(flag)
    extra = configs.get("tl.device_compile_flags") or ()
    for flag in [extra] if isinstance(extra, str) else extra:
        found += shlex.split(flag)
    if configs.get("tl.enable_fast_math"):
        found.append("--use_fast_math")
    level = configs.get("tl.ptxas_register_usage_level")
    if level is not None:
        found.append(f"--ptxas-options=--register-usage-level={int(level)}")
    return found


# Parsing of the tools' output ----------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?")
_STATIC = re.compile(r"(\d+) bytes smem")
_WARNING = re.compile(
    r"^(?:ptxas )?(?:warning|info)\s*: \(?[CW]\d+\)? *(.*)$|^ptxas warning *: (.*)$"
)
_INSTRUCTION = re.compile(r"\s*(?:@!?%?\w+\s+)?([a-z]\w*(?:(?:\.|::)\w+)*)(?:[\s\[]|$)")
_STATEMENT = re.compile(r"[;{}\n]")
_ALLOCATED = re.compile(r"tl::tmem_allocate(?:<[^>]*>)?\([^;]*?,\s*(\d+)\s*\)\s*;")


def _entries(output: str) -> dict[str, list[str]]:
    """Split the output of ptxas by kernel."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output.splitlines():
        if entry := _ENTRY.search(line):
            lines = found.setdefault(entry[1], [])
        lines.append(line)
    return found


def _machine_code(
    name: str, lines: Sequence[str], ptx: str, launch: Mapping[str, Any], columns: int
) -> MachineCode:
    output = "\n".join(lines)
    used = _USED.search(output)
    frame = _SPILLS.search(output)
    static = _STATIC.search(output)
    warnings = [found[1] or found[2] for found in map(_WARNING.match, lines) if found]
    return MachineCode(
        name=name,
        registers=int(used[1]) if used else 0,
        spills=int(frame[2]) + int(frame[3]) if frame else 0,
        stack=int(frame[1]) if frame else 0,
        shared_memory=(int(static[1]) if static else 0) + int(launch.get("shared", 0)),
        tensor_memory=columns,
        barriers=int(used[2] or 0) if used else 0,
        threads=launch.get("threads"),
        instructions=_instructions(_body(ptx, name)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _body(ptx: str, name: str) -> str:
    """The text of one kernel in a PTX module."""
    start = re.search(rf"\.entry {re.escape(name)}\(", ptx)
    if start is None:
        return ptx
    end = ptx.find(".entry ", start.end())
    return ptx[start.end() : end if end >= 0 else len(ptx)]


def _instructions(body: str) -> dict[str, int]:
    """Count each instruction; a line of inline assembly may have several, in braces."""
    statements = map(_INSTRUCTION.match, _STATEMENT.split(body))
    counts = Counter(found[1] for found in statements if found)
    return dict(sorted(counts.items()))


def _tensor_memory(source: str) -> int:
    """Sum the columns of tensor memory that a source allocates; they are live together."""
    return sum(int(columns) for columns in _ALLOCATED.findall(source))


# Compiled kernels, as plain data ---------------------------------------------------------------


@dataclass(frozen=True)
class MachineCode:
    """One device function as machine code for one architecture.

    Attributes:
        name: the function's symbol.
        registers: registers per thread.
        spills: bytes of register spill stores and loads.
        stack: bytes of the stack frame.
        shared_memory: static and dynamic bytes per block.
        tensor_memory: columns of tensor memory that the kernel allocates.
        barriers: named barriers.
        threads: threads per block; None if only the launch determines it.
        instructions: how often each PTX instruction occurs, by its full name.
        warnings: warnings of ptxas.
    """

    name: str
    registers: int
    spills: int = 0
    stack: int = 0
    shared_memory: int = 0
    tensor_memory: int = 0
    barriers: int = 0
    threads: int | None = None
    instructions: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def has(self, instruction: str) -> bool:
        """Whether the function uses an instruction; `tcgen05.mma` matches all of its forms."""
        return bool(self.matching(instruction))

    def matching(self, instruction: str) -> dict[str, int]:
        """The instructions of the function that are forms of one, and how often each occurs."""
        return {
            name: count
            for name, count in self.instructions.items()
            if name == instruction or name.startswith(f"{instruction}.")
        }


@dataclass(frozen=True)
class CompiledKernel:
    """The result of compiling one traced kernel for one architecture.

    `parts` are its device functions. After a failure `error` has the compiler's message and
    `stage` is `lower` or `assemble`. `missing` is the reason why this machine cannot assemble it.
    `source` is the CUDA source.
    """

    kernel: str
    arch: str
    key: str
    place: str = ""
    parts: tuple[MachineCode, ...] = ()
    stage: str = ""
    error: str = ""
    missing: str = ""
    source: str = ""
    lower_seconds: float = 0.0
    assemble_seconds: float = 0.0
