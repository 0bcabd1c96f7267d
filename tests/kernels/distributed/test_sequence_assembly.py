"""Who waits for remote keys in the overlapped kernel of sequence-parallel attention on Hopper."""

import tilelang
from tilelang import tvm

from tlmatrix_kernels.attention.options import PASS_CONFIGS
from tlmatrix_kernels.distributed.attention.overlapped_forward import overlapped_forward

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
CONFIGS = {str(getattr(key, "value", key)): value for key, value in PASS_CONFIGS.items()}


def test_only_the_producer_waits_for_incoming_keys():
    with TARGET, tvm.transform.PassContext(opt_level=3, config=CONFIGS):
        kernel = overlapped_forward.get_tir("bfloat16", 4, 64, 64, True)
        source = tilelang.lower(kernel, target=TARGET).kernel_source
    source = source[source.index('extern "C" __global__ void __launch_bounds__(512, 1)') :]
    loading, multiplying = source.split("tl::warpgroup_reg_alloc<160>();")
    loop = loading[loading.index("tl::warpgroup_reg_dealloc<24>();") :]
    assert "tlm_given" not in multiplying
    assert loop.count("tlm_given_ge_acquire_sys(") == 1, "once a tile"
    assert loop.index("tlm_given_ge_acquire_sys(") < loop.index("tma_load(k_desc")
    assert loop.index("tma_load(k_desc") < loop.index("tma_load(v_desc")
    assert multiplying.count("tl::wgmma_") == 2
