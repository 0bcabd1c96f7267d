"""What NumPy does for each operation of the IR's index expressions, on arrays of values at once.

For what is evaluated before a kernel runs: layouts, and conditions on the thread. Truncating
division is taken for floor division: what is divided is an index.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["ARITHMETIC", "BITS"]

ARITHMETIC: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Div": np.floor_divide,
    "Mod": np.mod,
    "Min": np.minimum,
    "Max": np.maximum,
}
"""By the name of the node's class; the operands are `a` and `b`."""

BITS: dict[str, Any] = {
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.shift_left": np.left_shift,
    "tirx.shift_right": np.right_shift,
}
"""By the name of the operation called."""
