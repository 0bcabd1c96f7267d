"""Traced kernels to assemblies: lowered, assembled, each once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.assembly.assembled import Assembly
from tlmatrix.backend.assembly.lowering import Lowerer, LoweringError
from tlmatrix.backend.assembly.store import kept
from tlmatrix.backend.assembly.toolkit import AssemblingError, Toolkit, find_toolkit, flags_for
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from pathlib import Path

    from tlmatrix.interpreter import TracedKernel

__all__ = ["Assembler"]

_FORMAT = 3  # raise it when what is read from the tools changes


@dataclass
class Assembler:
    """Assembles traced kernels; what was assembled once is known afterwards.

    `toolkit` is None where there is no nvcc: then kernels are lowered, and no more.
    """

    toolkit: Toolkit | None = field(default_factory=find_toolkit)
    folder: Path | None = None
    lowerer: Lowerer = field(default_factory=Lowerer)
    _known: dict[str, Assembly] = field(default_factory=dict)

    def assemble(self, kernel: TracedKernel, arch: str) -> Assembly:
        """What becomes of a kernel on an architecture; never raises for the kernel's faults."""
        from tilelang import tvm

        ir = str(tvm.ir.save_json(kernel.prim_func))
        key = self._key(kernel, ir, arch)
        if key not in self._known:
            self._known[key] = kept(key, lambda: self._made(kernel, ir, arch, key), self.folder)
        return self._known[key]

    def close(self) -> None:
        """Let go of the process that lowers."""
        self.lowerer.close()

    def _key(self, kernel: TracedKernel, ir: str, arch: str) -> str:
        content: dict[str, Any] = {
            "ir": ir,
            "arch": arch,
            "configs": {name: str(value) for name, value in sorted(kernel.pass_configs.items())},
            "flags": list(kernel.compile_flags),
            "tilelang": metadata.version("tilelang"),
            "nvcc": self.toolkit.version if self.toolkit else "",
            "format": _FORMAT,
        }
        return sha256(canonical(content).encode()).hexdigest()[:24]

    def _made(self, kernel: TracedKernel, ir: str, arch: str, key: str) -> Assembly:
        about: dict[str, Any] = {"kernel": kernel.name, "arch": arch, "key": key}
        about["place"] = kernel.place
        try:
            lowered = self.lowerer.lower(ir, arch, kernel.pass_configs)
        except LoweringError as error:
            return Assembly(**about, stage="lower", error=str(error))
        about["lower_seconds"] = round(lowered["seconds"], 3)
        missing = "there is no nvcc" if self.toolkit is None else self.toolkit.lacks(arch)
        if self.toolkit is None or missing:
            return Assembly(**about, missing=missing)
        begin = time.perf_counter()
        flags = flags_for(kernel.pass_configs, kernel.compile_flags)
        try:
            parts = self.toolkit.assemble(lowered["source"], arch, lowered["kernels"], flags)
        except AssemblingError as error:
            return Assembly(**about, stage="assemble", error=str(error))
        seconds = round(time.perf_counter() - begin, 3)
        return Assembly(**about, parts=parts, assemble_seconds=seconds)
