"""What generated kernels call: memory with TileLang's bounds rules, tile operations, mathematics.

Values are numpy arrays and numbers; torch works on the same memory where it is faster (rounding
to low precision, exp2, matrix products, reductions).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tlmatrix.interpreter.sync.externs import BlockLaunch, call_extern, call_extern_by_lane
from tlmatrix.interpreter.sync.flags import Pointer, Pointers
from tlmatrix.interpreter.sync.launches import launch
from tlmatrix.interpreter.sync.regions import cells_of, row_cells

from . import lanes, launching, mathematics, memory
from .codecs import CODECS, F32, Codec
from .masks import KEPT, kept
from .memory import poison

__all__ = ["CODECS", "Codec", "environment", "poison"]


def environment() -> dict[str, Any]:
    """The names that generated source may use."""
    found: dict[str, Any] = {}
    for module in (memory, mathematics, lanes, launching):
        found.update({name: getattr(module, name) for name in module.__all__})
    found.update(CODECS)
    found.update(
        block_launch=BlockLaunch,
        call_extern=call_extern,
        call_extern_by_lane=call_extern_by_lane,
        Pointer=Pointer,
        Pointers=Pointers,
        launch=launch,
        cells_of=cells_of,
        row_cells=row_cells,
        KEPT=KEPT,
        kept=kept,
        F32=F32,
        np=np,
        torch=torch,
        INF=math.inf,
        NAN=math.nan,
    )
    return found
