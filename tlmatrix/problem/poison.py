"""The size of poison: values that must not affect results."""

from __future__ import annotations

import math

from tlmatrix.dtypes import dtype_named


def poison_scale(dtype: str) -> float:
    """A power of two to multiply N(0, 1) by: leaks become visible, and no product overflows.

    Infinity would turn a harmless `0 * x` into NaN. The largest product that a kernel stores in
    `dtype` is that of two poisoned tensors summed over a head (dS from do and v): about
    sqrt(256) * scale**2, and 4 times that must be finite. That gives 32 for float16. The scale is
    at most 2**40, so that float32 sums of three such factors are finite.
    """
    return 2.0 ** min(40, round(math.log2(math.sqrt(dtype_named(dtype).largest / 64))))
