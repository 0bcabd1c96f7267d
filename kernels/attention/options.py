"""Compiler options that every attention kernel shares."""

import tilelang

__all__ = ["PASS_CONFIGS"]

# exp2, log and division by the hardware's approximations (about 2 units in the last place of
# float32, far below the rounding of the 16-bit inputs); infinities keep their meaning.
PASS_CONFIGS = {tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True}
