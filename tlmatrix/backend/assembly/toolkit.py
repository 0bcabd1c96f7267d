"""CUDA source to machine code by nvcc and ptxas, and what they say of it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.assembly.assembled import Assembled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["AssemblingError", "Toolkit", "find_toolkit"]

_SECONDS = 900.0


class AssemblingError(Exception):
    """nvcc or ptxas refuses a kernel; the message is theirs."""


@dataclass(frozen=True)
class Toolkit:
    """An nvcc, its version, and the architectures it makes code for (`sm_90`; no letters)."""

    nvcc: Path
    version: str
    architectures: frozenset[str]

    def lacks(self, arch: str) -> str:
        """Why it cannot assemble for an architecture; "" if it can."""
        if arch.rstrip("af") in self.architectures:
            return ""
        return f"nvcc {self.version} does not know {arch}"

    def assemble(
        self,
        source: str,
        arch: str,
        kernels: Mapping[str, Mapping[str, Any]],
        flags: Sequence[str],
    ) -> tuple[Assembled, ...]:
        """Machine code of each kernel of a CUDA source; `kernels` are as `child` gives them.

        Raises:
            AssemblingError: the source does not compile, or the machine code cannot be made.
        """
        with tempfile.TemporaryDirectory(prefix="tlmatrix-") as folder:
            code, ptx, cubin = (Path(folder) / f"kernel.{end}" for end in ("cu", "ptx", "cubin"))
            code.write_text(source, encoding="utf-8")
            self._run(
                ["-ptx", f"-arch={arch}", "-std=c++20", "-O3", *_include(), *flags, code, ptx]
            )
            levels = [flag for flag in flags if flag.startswith("--ptxas-options")]
            told = self._run(["-cubin", f"-arch={arch}", "-Xptxas=-v", *levels, ptx, cubin])
            text = ptx.read_text(encoding="utf-8")
        columns = _tensor_memory(source)
        found = []
        for name, words in _entries(told).items():
            launch = kernels.get(name, {})
            found.append(_assembled(name, words, text, launch, columns))
        return tuple(found)

    def _run(self, words: Sequence[str | Path]) -> str:
        *options, code, result = map(str, words)
        command = [str(self.nvcc), *options, "-o", result, code]
        try:
            done = subprocess.run(  # noqa: S603 - the user's own compiler
                command, check=False, capture_output=True, text=True, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise AssemblingError(f"nvcc did not end in {_SECONDS:g} s") from error
        if done.returncode:
            raise AssemblingError((done.stderr or done.stdout).strip())
        return done.stdout + done.stderr


@cache
def find_toolkit() -> Toolkit | None:
    """The nvcc that TileLang would use, else the one on the path; None without one."""
    from tilelang.env import CUDA_HOME

    places = [Path(CUDA_HOME) / "bin" / "nvcc"] if CUDA_HOME else []
    if on_path := shutil.which("nvcc"):
        places.append(Path(on_path))
    for nvcc in places:
        if not nvcc.is_file():
            continue
        version = _said([str(nvcc), "--version"])
        release = re.search(r"\bV([0-9.]+)", version)
        codes = _said([str(nvcc), "--list-gpu-code"]).split()
        return Toolkit(nvcc, release[1] if release else "of unknown version", frozenset(codes))
    return None


def _said(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    return done.stdout


def _include() -> list[str]:
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    return [f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}"]


def flags_for(configs: Mapping[str, Any], flags: Sequence[str]) -> list[str]:
    """Options of nvcc that a kernel's pass configurations and compile flags ask for."""
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


# What the tools say --------------------------------------------------------------------------

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


def _entries(told: str) -> dict[str, list[str]]:
    """What ptxas says, by kernel."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in told.splitlines():
        if entry := _ENTRY.search(line):
            lines = found.setdefault(entry[1], [])
        lines.append(line)
    return found


def _assembled(
    name: str, words: Sequence[str], ptx: str, launch: Mapping[str, Any], columns: int
) -> Assembled:
    told = "\n".join(words)
    used = _USED.search(told)
    frame = _SPILLS.search(told)
    static = _STATIC.search(told)
    warnings = [found[1] or found[2] for found in map(_WARNING.match, words) if found]
    return Assembled(
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
    """The part of a PTX module from one kernel to the next."""
    start = re.search(rf"\.entry {re.escape(name)}\(", ptx)
    if start is None:
        return ptx
    end = ptx.find(".entry ", start.end())
    return ptx[start.end() : end if end >= 0 else len(ptx)]


def _instructions(body: str) -> dict[str, int]:
    """How often each instruction occurs; inline assembly has several on a line, in braces."""
    statements = map(_INSTRUCTION.match, _STATEMENT.split(body))
    counts = Counter(found[1] for found in statements if found)
    return dict(sorted(counts.items()))


def _tensor_memory(source: str) -> int:
    """Columns of tensor memory that a source allocates: blocks never share one allocation."""
    return sum(int(columns) for columns in _ALLOCATED.findall(source))
