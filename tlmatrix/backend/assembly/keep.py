"""Keeps what kernels are compiled to: the lowered IR, the CUDA source and the PTX."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.backend.assembly.lowering import LoweringError
from tlmatrix.backend.assembly.toolkit import AssemblerError, flags_for
from tlmatrix.cache_files import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from tlmatrix.backend.assembly.assembler import Assembler
    from tlmatrix.backend.assembly.compiled import CompiledKernel
    from tlmatrix.interpreter import TracedKernel

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
