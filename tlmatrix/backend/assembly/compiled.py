"""Resource usage and instructions of compiled kernels, as plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
