"""Compile traced kernels to machine code without a GPU, and check them against a spec's budgets.

`assembler` has TileLang generate CUDA in a child process; `toolkit` runs nvcc and ptxas and
parses their output; `budget` reports what exceeds a limit.
"""

from __future__ import annotations

from tlmatrix.backend.assembly.assembler import KINDS, Assembler, Keep
from tlmatrix.backend.assembly.budget import check_budgets
from tlmatrix.backend.assembly.toolkit import CompiledKernel, MachineCode, Toolkit, find_toolkit

__all__ = [
    "KINDS",
    "Assembler",
    "CompiledKernel",
    "Keep",
    "MachineCode",
    "Toolkit",
    "check_budgets",
    "find_toolkit",
]
