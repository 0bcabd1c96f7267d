"""A kernel of sequence-parallel attention lowers for Hopper, with its copies and products."""

import tilelang
from tilelang import tvm

from tlmatrix_kernels.attention.options import PASS_CONFIGS
from tlmatrix_kernels.distributed.attention import kernels

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
CONFIGS = {str(getattr(key, "value", key)): value for key, value in PASS_CONFIGS.items()}


def test_blocks_load_by_tma_and_multiply_by_wgmma():
    # Causal, and stored in float32 for another launch to go on from.
    options = ("float16", "float32", 4, 64, 64, True)
    with TARGET, tvm.transform.PassContext(opt_level=3, config=CONFIGS):
        source = tilelang.lower(kernels.forward.get_tir(*options), target=TARGET).kernel_source
    assert source.count("tma_load(k_desc") >= 1
    assert source.count("tma_load(v_desc") >= 1
    assert "wgmma" in source
