"""How large a value may be that must not be seen."""

from __future__ import annotations

import math

from tlmatrix.spec.dtypes import dtype_named

__all__ = ["huge"]


def huge(dtype: str) -> float:
    """A power of two to multiply N(0, 1) with: any leak shows, and no product overflows.

    Infinities would turn a harmless `0 * x` into NaN. The deepest product that a kernel stores
    in its own dtype is one of two poisoned tensors summed over a head (dS from do and v): its
    size is about sqrt(256) huge**2, and 4 times that must stay finite. That gives 32 for float16.
    Beyond 2**40 nothing is gained, and float32 sums of three such factors stay finite.
    """
    return 2.0 ** min(40, round(math.log2(math.sqrt(dtype_named(dtype).largest / 64))))
