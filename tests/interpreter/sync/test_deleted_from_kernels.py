"""The project's own kernels with roles, without any one of their waits, arrives and barriers.

Each deletion is reported under one of fifty schedules, or changes nothing under any. Tiles are
small, so that every stage is used more than twice within the time of a test; the code is that of
the big tiles.
"""

import pytest
import torch
from deletions import fates
from tilelang import tvm

from tlmatrix_kernels.attention.sm100 import kernels
from tlmatrix_kernels.attention.sm100.tiles import Sm100Tiles
from tlmatrix_kernels.gemm.tcgen05 import Tcgen05Tiles, tcgen05_kernel, tcgen05_ws_kernel
from tlmatrix_kernels.gemm.wgmma import WgmmaTiles, wgmma_ws_kernel

ARCH = "sm_100a"
TCGEN05 = Tcgen05Tiles(block_m=32, block_n=32, block_k=32, stages=2)
WGMMA = WgmmaTiles(half_m=16, block_n=32, block_k=32, stages=2)


def traced(factory, *arguments):
    with tvm.target.Target({"kind": "cuda", "arch": ARCH}):
        return factory.get_tir(*arguments)


def product(factory, tiles, *more):
    """Six tiles of C in one block, five steps of K: no number is a multiple of the stages."""
    func = traced(factory, "float16", "float32", False, False, False, True, tiles)
    a, b = torch.randn(96, 144).half(), torch.randn(144, 64).half()
    return func, (a, b, torch.empty(96, 64), *more)


def attention(variant):
    """Five tiles of keys, the last cut."""
    stages, threads = (2, 192) if variant == "wasp" else (1, 128)
    tiles = Sm100Tiles(queries=32, keys=32, threads=threads, stages=stages, part=32)
    func = traced(kernels.forward, variant, "bshd", "float16", 1, 32, 64, False, False, tiles)
    q, k = torch.randn(1, 32, 1, 32).half(), torch.randn(1, 150, 1, 32).half()
    v = torch.randn(1, 150, 1, 64).half()
    return func, (q, k, v, torch.empty(1, 32, 1, 64).half(), torch.empty(1, 1, 32), 0.2, 0)


def gradients():
    """Five tiles of queries, the last cut, and two of keys."""
    tiles = Sm100Tiles(queries=32, keys=32, threads=128, stages=1, part=32)
    func = traced(
        kernels.key_gradients, "bshd", "float16", 1, 32, 64, False, False, "reordered", tiles
    )
    q, do = torch.randn(1, 150, 1, 32).half(), torch.randn(1, 150, 1, 64).half()
    k, v = torch.randn(1, 40, 1, 32).half(), torch.randn(1, 40, 1, 64).half()
    statistics = torch.full((1, 1, 150), 4.0), torch.randn(1, 1, 150)
    dq_sum = torch.zeros(1, 1, 5, 8, 32, 4)  # five blocks of 32 rows (see `reordered`)
    made = [torch.zeros_like(tensor)[None] for tensor in (k, v)]
    return func, (q, k, v, do, *statistics, dq_sum, *made, 0.2, 0)


# How to make a kernel, how many waits and such it has, how many of them change nothing.
KERNELS = {
    "gemm tcgen05": (lambda: product(tcgen05_kernel, TCGEN05), 4, 0),
    "gemm tcgen05_ws": (lambda: product(tcgen05_ws_kernel, TCGEN05, 1), 8, 0),
    "gemm wgmma_ws": (lambda: product(wgmma_ws_kernel, WGMMA, 1), 12, 0),
    "attention ss": (lambda: attention("ss"), 10, 0),
    "attention ts": (lambda: attention("ts"), 10, 0),
    "attention wasp": (lambda: attention("wasp"), 13, 0),
    # The barrier before tensor memory is freed: TileLang lowers no tiles as small as these, so that
    # `analysis.ownership` cannot see that it is missing.
    "attention gradients": (gradients, 14, 1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_deleting_any_one_wait_or_arrive_is_reported_or_without_effect(name):
    torch.manual_seed(0)
    make, count, harmless = KERNELS[name]
    func, inputs = make()
    found = fates(func, inputs, arch=ARCH, out_idx=())
    assert len(found) == count
    others = [one for one in found if one.fate != "reported"]
    assert [(one.name, one.fate) for one in others] == harmless * [
        ("tirx.tvm_storage_sync", "no effect")
    ]
