"""From traced kernels to machine code, with no GPU: lowered, assembled, and held to a budget.

`lowering` has TileLang write CUDA, in a process of its own; `toolkit` has nvcc and ptxas make
machine code of it; `store` keeps what was learnt on disk; `budget` says what is too much.
"""

from __future__ import annotations

from tlmatrix.backend.assembly.assembled import Assembled, Assembly
from tlmatrix.backend.assembly.assembler import Assembler
from tlmatrix.backend.assembly.budget import over_budget
from tlmatrix.backend.assembly.toolkit import Toolkit, find_toolkit

__all__ = ["Assembled", "Assembler", "Assembly", "Toolkit", "find_toolkit", "over_budget"]
