"""Compiles traced kernels: lowers and assembles each of them once.

TileLang's lowering runs in a child process, so that a crash there becomes an error here.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.ahead import Tickets
from tlmatrix.backend.assembly.toolkit import (
    AssemblerError,
    CompiledKernel,
    Toolkit,
    find_toolkit,
    flags_for,
)
from tlmatrix.cache_files import FileCache, cache_folder, write_file
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import IO

    from tlmatrix.interpreter import TracedKernel


_TAIL = 20
"""Last lines of a crashed process's output that the error shows."""
_SECONDS = 900.0
"""Time limit of lowering one kernel, three times that of the slowest one known."""


class LoweringError(Exception):
    """TileLang cannot lower a kernel; the message is the compiler's."""


class Lowerer:
    """Lowers kernels one at a time in a child process, which starts on first use."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[str] | None = None
        self._output: IO[str] | None = None

    def lower(self, ir: str, arch: str, configs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the child, see `lowering_process`.

        Raises:
            LoweringError: the compiler rejects the kernel, crashes or exceeds the time limit.
        """
        child = self._start()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({"ir": ir, "arch": arch, "configs": dict(configs)}) + "\n")
            child.stdin.flush()
            line = self._read_answer(child)
        except BrokenPipeError:
            line = ""
        except BaseException:
            self.close()  # otherwise the next request would read this one's answer
            raise
        if not line:
            raise LoweringError(self._crash_message())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LoweringError(answer["error"])
        return answer

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def _start(self) -> subprocess.Popen[str]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        self._output = tempfile.TemporaryFile(  # noqa: SIM115 - lives as long as the child
            "w+", encoding="utf-8", errors="replace"
        )
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tlmatrix.backend.assembly.lowering_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self._child

    def _read_answer(self, child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            ready, _, _ = select.select([child.stdout], [], [], 1.0)
            if ready:
                return child.stdout.readline()
        self.close()
        raise LoweringError(f"lowering did not end in {self._seconds:g} s")

    def _crash_message(self) -> str:
        """The exit status of the child and the last lines of its output."""
        child, output = self._child, self._output
        assert child is not None
        assert output is not None
        status = child.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        output.seek(0)
        last = output.read().strip().splitlines()[-_TAIL:]
        self.close()
        return "\n".join([f"the compiler crashed: its process ended with {how}", *last])


_LIMIT = 4 << 30
"""Bytes of the cache on disk; nvcc takes seconds to minutes per kernel."""
_FORMAT = 5
"""Version of the cached data; raise it when the parsing of the tools' output changes."""


@dataclass
class Assembler:
    """Compiles traced kernels, with a cache in memory and one on disk.

    `toolkit` is None if there is no nvcc; kernels are then lowered but not assembled. `folder`
    is the cache on disk, by default that of the user.
    """

    toolkit: Toolkit | None = field(default_factory=find_toolkit)
    folder: Path | None = None
    lowerer: Lowerer = field(default_factory=Lowerer)
    _known: dict[tuple[str, str], CompiledKernel] = field(default_factory=dict)

    def assemble(self, kernel: TracedKernel, arch: str) -> CompiledKernel:
        """Compile a kernel for an architecture; errors of the compilers are part of the result."""
        from tilelang import tvm

        ir = str(tvm.ir.save_json(kernel.prim_func))
        key = self._key(kernel, ir, arch)
        if (key, kernel.place) not in self._known:
            found = self._store.find(key, CompiledKernel)
            if found is None:
                Tickets.of_run().wait_for(key)
                with self._store.exclusive(key):
                    found = self._store.find(key, CompiledKernel)
                    if found is None:
                        found = self._compile(kernel, ir, arch, key)
                        if not found.error and not found.missing:
                            self._store.add(key, found)
            self._known[key, kernel.place] = replace(found, place=kernel.place)
        return self._known[key, kernel.place]

    def key(self, kernel: TracedKernel, arch: str) -> str:
        """The key of a kernel in the cache on disk."""
        from tilelang import tvm

        return self._key(kernel, str(tvm.ir.save_json(kernel.prim_func)), arch)

    def known(self, key: str) -> bool:
        """Whether the cache on disk has a kernel."""
        return key in self._store

    def lower(self, kernel: TracedKernel, arch: str) -> dict[str, Any]:
        """The kernel's CUDA source and lowered IR, see `lowering_process`.

        Raises:
            LoweringError: TileLang cannot lower it.
        """
        from tilelang import tvm

        return self.lowerer.lower(
            str(tvm.ir.save_json(kernel.prim_func)), arch, kernel.pass_configs
        )

    @cached_property
    def _store(self) -> FileCache:
        return FileCache(self.folder or cache_folder() / "assembly", _LIMIT)

    def close(self) -> None:
        """End the lowering process."""
        self.lowerer.close()

    def _key(self, kernel: TracedKernel, ir: str, arch: str) -> str:
        content: dict[str, Any] = {
            "ir": _without_places(ir),
            "arch": arch,
            "configs": {name: str(value) for name, value in sorted(kernel.pass_configs.items())},
            "flags": list(kernel.compile_flags),
            "tilelang": metadata.version("tilelang"),
            "nvcc": self.toolkit.version if self.toolkit else "",
            "format": _FORMAT,
        }
        return sha256(canonical(content).encode()).hexdigest()[:24]

    def _compile(self, kernel: TracedKernel, ir: str, arch: str, key: str) -> CompiledKernel:
        about: dict[str, Any] = {"kernel": kernel.name, "arch": arch, "key": key}
        about["place"] = kernel.place
        try:
            lowered = self.lowerer.lower(ir, arch, kernel.pass_configs)
        except LoweringError as error:
            return CompiledKernel(**about, stage="lower", error=str(error))
        about |= {"source": lowered["source"], "lower_seconds": round(lowered["seconds"], 3)}
        missing = "there is no nvcc" if self.toolkit is None else self.toolkit.lacks(arch)
        if self.toolkit is None or missing:
            return CompiledKernel(**about, missing=missing)
        begin = time.perf_counter()
        flags = flags_for(kernel.pass_configs, kernel.compile_flags)
        try:
            parts = self.toolkit.assemble(lowered["source"], arch, lowered["kernels"], flags)
        except AssemblerError as error:
            return CompiledKernel(**about, stage="assemble", error=str(error))
        seconds = round(time.perf_counter() - begin, 3)
        return CompiledKernel(**about, parts=parts, assemble_seconds=seconds)


def _without_places(ir: str) -> list[Any]:
    """The nodes of an IR without files and lines, on which machine code does not depend.

    So a kernel is compiled once for all clones, and not again after an edit of a comment.
    """
    nodes: list[Any] = json.loads(ir)["nodes"]
    for node in nodes:
        if node["type"] in {"ir.SourceName", "ir.Span"}:
            node["data"] = None
    return nodes


# What kernels are compiled to, kept in files ---------------------------------------------------


KINDS = {"ir": "tir", "cuda": "cu", "ptx": "ptx"}
"""What can be kept, and the ending of its file."""


@dataclass(frozen=True)
class Keep:
    """Which of `KINDS` to keep, in files `folder/SPEC/KERNEL-ARCH-KEY.ENDING`.

    KEY is the start of the kernel's key in the results file; equal kernels have one file.
    """

    kinds: frozenset[str]
    folder: Path

    @classmethod
    def parse(cls, given: str, results: Path) -> Keep:
        """Read `ir,cuda,ptx`; the folder is beside the results file.

        Raises:
            ValueError: there is no such kind.
        """
        kinds = [word.strip() for word in given.split(",")]
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"{kind!r} cannot be kept; one or more of {', '.join(KINDS)} can")
        return cls(frozenset(kinds), results.with_name(f"{results.stem}-kernels"))

    def write(
        self, spec: str, kernel: TracedKernel, compiled: CompiledKernel, assembler: Assembler
    ) -> None:
        """Lower the kernel once more, and write files that are not there yet.

        A kernel that cannot be lowered has no files, one that nvcc rejects no PTX.
        """
        name = f"{compiled.kernel}-{compiled.arch}-{compiled.key[:8]}"
        paths = {kind: self.folder / spec / f"{name}.{KINDS[kind]}" for kind in sorted(self.kinds)}
        if all(path.is_file() for path in paths.values()):
            return
        try:
            lowered = assembler.lower(kernel, compiled.arch)
        except LoweringError:
            return
        texts = {"ir": lowered["ir"], "cuda": lowered["source"]}
        toolkit = assembler.toolkit
        if "ptx" in paths and toolkit is not None and not toolkit.lacks(compiled.arch):
            flags = flags_for(kernel.pass_configs, kernel.compile_flags)
            with suppress(AssemblerError):  # a finding has the message
                texts["ptx"] = toolkit.ptx(lowered["source"], compiled.arch, flags)
        for kind, path in paths.items():
            if kind in texts:
                write_file(path, texts[kind].encode("utf-8"))
