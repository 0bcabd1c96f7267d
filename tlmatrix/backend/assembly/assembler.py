"""Compiles traced kernels: lowers and assembles each of them once."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.ahead.tickets import Tickets
from tlmatrix.backend.assembly.lowering import Lowerer, LoweringError
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
    from pathlib import Path

    from tlmatrix.interpreter import TracedKernel


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
