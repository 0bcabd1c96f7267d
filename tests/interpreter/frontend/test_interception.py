"""`interpret()` leaves TileLang as it found it, and neither side finds the other's kernels."""

import sys
import threading

import pytest
import tilelang
import tilelang.language as T
import torch
from tilelang.autotuner import autotune
from tilelang.jit import JITImpl

import preloaded_python
from jit_kernel import jit_kernel
from tlmatrix.interpreter import InterpretedKernel, interpret


@jit_kernel(A="f32[n]", B="f32[n]", out_idx=[-1], threads=32)
def add_one(A, B, n, k=1.0):
    for i in T.Parallel(n):
        B[i] = A[i] + k


@tilelang.jit
def eager_add(A, B, block: int = 16):
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B: T.Tensor[[n], T.float32]
    C = T.empty([n], "float32")
    with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
        for i in T.Parallel(block):
            C[bx * block + i] = A[bx * block + i] + B[bx * block + i]
    return C


def entry_points():
    jit = sys.modules["tilelang.jit"]
    from tilelang.autotuner.tuner import AutoTuneImpl
    from tilelang.language.eager.builder import Builder

    return [
        jit.cached,
        jit.par_compile,
        JITImpl.__dict__["__call__"],
        JITImpl.__dict__["compile"],
        JITImpl.__dict__["par_compile"],
        AutoTuneImpl.__dict__["__call__"],
        Builder.__dict__["set_fileline"],
    ]


def caches(jit):
    return [
        dict(jit._kernel_cache),
        len(jit._call_form_cache),
        dict(jit._tuner_cache),
        dict(jit.func.p1_cache),
        jit.mode,
        jit.func.mode,
    ]


def test_exit_restores_every_entry_point_and_leaves_no_trace_in_caches():
    before, cached = entry_points(), [caches(add_one), caches(eager_add)]
    with interpret():
        add_one(8)(torch.ones(8))
        eager_add(torch.ones(20), torch.ones(20))
        with interpret():
            add_one(9)(torch.ones(9))
        assert isinstance(add_one(10), InterpretedKernel)
    assert entry_points() == before
    assert [caches(add_one), caches(eager_add)] == cached


def test_exit_restores_after_an_error():
    before = entry_points()
    with pytest.raises(KeyError), interpret():
        raise KeyError
    assert entry_points() == before


def test_a_kernel_is_found_again_inside_and_in_a_later_context():
    with interpret():
        first = add_one(33)
        assert add_one(33) is first
        assert add_one(33, k=2.0) is not first
    with interpret():
        assert add_one(33) is first


def test_architectures_do_not_share_kernels():
    with interpret(arch="sm_90a"):
        first = add_one(34)
    with interpret(arch="sm_80"):
        assert add_one(34) is not first


def test_a_kernel_from_outside_is_not_returned_inside():
    marker = object()
    key, _ = add_one.func.parse_args(35)
    add_one._kernel_cache[key] = marker
    try:
        with interpret():
            assert add_one(35) is not marker
    finally:
        del add_one._kernel_cache[key]


def test_an_eager_kernel_runs_at_once():
    a, b = torch.randn(40), torch.randn(40)
    with interpret():
        assert torch.equal(eager_add(a, b), a + b)
        assert torch.equal(eager_add(a, b, block=32), a + b)


def test_compile_of_a_prim_func():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            T.copy(A, B)

    a = torch.randn(8)
    with interpret():
        assert torch.equal(tilelang.compile(main, out_idx=-1)(a), a)
        assert torch.equal(tilelang.compile(main, out_idx=[1])(a), a)
        b = torch.empty(8)
        assert tilelang.compile(main)(a, b) is None
        assert torch.equal(b, a)


def test_compile_methods_of_a_factory():
    with interpret():
        assert add_one.compile(12)(torch.zeros(12)).eq(1).all()
        kernels = add_one.par_compile([{"n": 4}, {"n": 5}])
        assert [tuple(k(torch.zeros(n)).shape) for k, n in zip(kernels, (4, 5), strict=True)] == [
            (4,),
            (5,),
        ]


def test_an_autotuned_factory_takes_its_first_configuration():
    @autotune(configs=[{"block": 8}, {"block": 16}])
    @tilelang.jit(out_idx=[-1])
    def tuned(n, block=4):
        @T.prim_func
        def main(B: T.Tensor((n,), "int32")):
            with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
                for i in T.Parallel(block):
                    B[bx * block + i] = block

        return main

    with interpret():
        assert tuned(20)().eq(8).all()
        assert tuned(20, block=16)().eq(16).all()
        assert tuned.compile(20)().eq(8).all()


def test_what_is_not_specialized_is_tuned_whatever_it_is_passed():
    @autotune(configs=[{"block": 8}, {"block": 16}], do_not_specialize=["block"])
    @tilelang.jit(out_idx=[-1])
    def tuned(n, block):
        @T.prim_func
        def main(B: T.Tensor((n,), "int32")):
            with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
                for i in T.Parallel(block):
                    B[bx * block + i] = block

        return main

    with interpret():
        kernel = tuned(20, block=4)
        assert kernel.config == {"block": 8}
        assert kernel().eq(8).all()


def test_only_the_thread_that_entered_is_concerned():
    seen = []

    def other():
        from tlmatrix.interpreter.frontend import session

        seen.append(bool(session.local.stack))

    with interpret():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [False]


def test_threads_may_interpret_at_the_same_time():
    failures = []

    def work(n):
        try:
            for _ in range(5):
                with interpret():
                    assert add_one(n)(torch.zeros(n)).eq(1).all()
        except Exception as error:  # noqa: BLE001  # collected for the main thread
            failures.append(error)

    before = entry_points()
    threads = [threading.Thread(target=work, args=(50 + k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert entry_points() == before


def test_a_factory_that_is_gone_is_forgotten():
    from tlmatrix.interpreter.frontend import intercept

    @jit_kernel(out_idx=[-1], threads=32)
    def short_lived(B: T.Tensor((3,), "float32")):
        T.clear(B)

    with interpret():
        short_lived()
    identity = id(short_lived)
    assert identity in intercept._copies
    del short_lived
    import gc

    gc.collect()
    assert identity not in intercept._copies


_COMPILED = """
import tilelang, tilelang.language as T, torch
from torch._dynamo.utils import counters
from tlmatrix.interpreter import interpret

@tilelang.jit(out_idx=[-1])
def double(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                B[i] = A[i] * 2
    return main

def operator(a):
    return double(64)(a) + 1

before, a = torch.compile(operator), torch.randn(64)
with interpret():
    within = torch.compile(operator, fullgraph=True)
    assert torch.equal(before(a), a * 2 + 1)
    assert torch.equal(within(a), a * 2 + 1)
assert not counters["frames"], counters["frames"]
"""


def test_dynamo_does_not_trace_interpreted_kernels(tmp_path):
    # In a process of its own: TileLang needs a file, and Dynamo slows down what follows it.
    script = tmp_path / "compiled.py"
    script.write_text(_COMPILED)
    done = preloaded_python.run(script)
    assert done.returncode == 0, done.stderr


def test_an_outputs_shape_may_depend_on_a_scalar_alone():
    @tilelang.jit
    def repeated(a, count: T.int32):
        n = T.dynamic("n")
        a: T.Tensor((n,), "float32")
        out = T.empty((count + 1,), "float32")
        with T.Kernel(T.ceildiv(count + 1, 32), threads=32) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i <= count:
                    out[bx * 32 + i] = a[0]
        return out

    with interpret():
        assert torch.equal(repeated(torch.full((3,), 7.0), 40), torch.full((41,), 7.0))
