"""Compiler options of the attention kernels."""

import tilelang

# Hardware approximations of exp2, log and division (about 2 ulp in float32, far below the rounding
# of the 16-bit inputs). Infinities are still handled correctly.
PASS_CONFIGS = {tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True}
SPECIALIZED_CONFIGS = PASS_CONFIGS | {tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}
"""Of kernels whose warp roles are written by hand."""
SYNCHRONIZED_CONFIGS = SPECIALIZED_CONFIGS | {
    tilelang.PassConfigKey.TL_DISABLE_THREAD_STORAGE_SYNC: True
}
"""Of kernels whose barriers are written by hand, too."""
