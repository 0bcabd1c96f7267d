"""Warnings of TileLang's compiler about kernels that tlmatrix lowers for itself."""

import os

import tilelang.language as T
from tilelang import tvm

from tlmatrix.interpreter.frontend.programs import lowered
from tlmatrix.interpreter.patching import without_warnings


@T.prim_func
def many_registers(
    A: T.Tensor((384, 512), "float16"),
    B: T.Tensor((512, 512), "float16"),
    C: T.Tensor((384, 512), "float16"),
):
    """A kernel whose warp groups TileLang cannot give the registers that it would."""
    with T.Kernel(2, 2, threads=384) as (bx, by):
        a = T.alloc_shared((192, 64), "float16")
        b = T.alloc_shared((64, 256), "float16")
        c = T.alloc_fragment((192, 256), "float32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(A[by * 192, k * 64], a)
            T.copy(B[k * 64, bx * 256], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 192, bx * 256])


def test_a_kernel_is_lowered_without_warnings(capfd):
    assert lowered(many_registers, "sm_90a", {}) is not None
    assert "Warning" not in capfd.readouterr().err

    # The kernel does give one.
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target, tvm.transform.PassContext(opt_level=3):
        import tilelang

        tilelang.lower(many_registers, target=target)
    assert "consumer register allocation" in capfd.readouterr().err


def test_what_is_no_warning_is_written(capfd):
    with without_warnings():
        os.write(2, b"[12:00:00] /a/pass.cc:3: Warning: slow\nfatal: no memory\n")
    assert capfd.readouterr().err == "fatal: no memory\n"
