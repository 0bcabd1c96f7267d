"""One warp after another, as the deletion tests of lowered code run it."""

import sys
from pathlib import Path

import pytest
import tilelang.language as T
import torch

from tlmatrix.interpreter.lowered.emit import Emitter
from tlmatrix.interpreter.lowered.lowering import HANDLERS, LoweredKernel, lower, parsed

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from lowered_schedules import SCHEDULES, run_scheduled


@T.prim_func
def product(
    A: T.Tensor((64, 128), "float16"),
    B: T.Tensor((128, 64), "float16"),
    C: T.Tensor((64, 64), "float16"),
):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        out = T.alloc_shared((64, 64), "float16")
        T.clear(c)
        for step in T.Pipelined(2, num_stages=2):
            T.copy(A[0, step * 64], a)
            T.copy(B[step * 64, 0], b)
            T.gemm(a, b, c)
        T.copy(c, out)
        T.copy(out, C)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_product_is_right_under_every_schedule(arch):
    kernel, steps, functions = parsed(lower(product, arch, {}))
    programs = {}
    for function in functions:
        emitter = Emitter(function, HANDLERS)
        emitter.suspends = True
        programs[function.name] = emitter.program()
    a, b = (torch.randint(-2, 3, shape).half() for shape in ((64, 128), (128, 64)))
    for schedule in SCHEDULES:
        c = torch.zeros(64, 64).half()
        run_scheduled(LoweredKernel(kernel, steps, programs), [a, b, c], schedule)
        assert torch.equal(c, a @ b)
