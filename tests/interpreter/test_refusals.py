"""What is not modelled is refused by name and line, never skipped."""

import inspect

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import InterpreterError, Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")


@jit_kernel(Y="f32[32]", name="main", threads=32)
def thread_index(Y):
    tx = T.get_thread_binding(0)
    for i in T.Parallel(32):
        Y[i] = tx  # here


@jit_kernel(X="f32[32]", name="main")
def barrier_of_some_threads(X):
    with T.ClusterKernel(2, threads=32, cluster_dims=2):
        if X[T.get_thread_binding()] > 0:
            T.cluster_sync()  # here


@jit_kernel(Y="f32[32]", name="main", threads=32)
def extern(Y):
    for i in T.Parallel(32):
        Y[i] = T.call_extern("float32", "my_device_function", i)  # here


@jit_kernel(Y="f32[32]", name="main", threads=32)
def shuffle(Y):
    for i in T.Parallel(32):
        Y[i] = T.shfl_xor(Y[i], 1)  # here


@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e5m2fnuz", "bfloat16x2"])
def test_elements_that_the_interpreter_does_not_compute_with_are_refused(dtype):
    @jit_kernel(name="main", threads=32)
    def kernel(A: T.Tensor((32,), dtype), B: T.Tensor((32,), dtype)):
        T.copy(A, B)

    with pytest.raises(
        Unsupported, match=rf"a parameter of dtype {dtype} \(A\), in kernel main: ."
    ):
        kernel()


@jit_kernel(Y="f32[32]", name="main", threads=32)
def random_numbers(Y):
    T.rng_init(7)  # here
    for i in T.Parallel(32):
        Y[i] = T.rng_rand_float()


def products_by_descriptors(number):
    @T.prim_func
    def main(Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=128):
            c = T.alloc_local((4,), "float32")
            a = T.alloc_shared((1,), "uint64")
            Y[0] = number
            T.ptx_wgmma_ss(  # here
                *("float32", "m64n8k16", True, True, "fp16", "fp16", "fp32"),
                *(a.data, 0, a.data, 0, c.data, 0, True, 1, 1),
            )

    return main


@jit_kernel(Y="f32[4]", name="main", threads=128)
def descriptor(Y):
    T.alloc_wgmma_desc()
    Y[0] = 1


@jit_kernel(Y="f16[64, 64]", name="main", threads=128)
def tma_descriptor(Y):
    T.create_tma_descriptor(6, 2, Y.data, 64, 64, 2, 128, 64, 64, 1, 1, 0, 3, 2, 0)


def test_each_kernel_is_refused_at_each_call():
    for number in (1, 1, 2, 2):
        with pytest.raises(Unsupported, match=r"tl.ptx_wgmma_ss .*T.gemm, T.wgmma_gemm") as error:
            tilelang.compile(products_by_descriptors(number))
        assert __file__ in str(error.value)


@pytest.mark.parametrize(
    ("factory", "advice"),
    [
        (descriptor, r"local.descriptor.wgmma \(.*T.gemm, T.wgmma_gemm and T.tcgen05_gemm make"),
        (tma_descriptor, r"tl.create_tma_descriptor .*T.copy and T.tma_copy make descriptors"),
        (random_numbers, "draw the numbers in PyTorch and pass them"),
        (extern, r"model_extern \(docs/guides/simulated-ranks.md\)"),
        (barrier_of_some_threads, "only be judged on a GPU: --backend cuda"),
    ],
)
def test_a_refusal_says_what_can_be_done(factory, advice):
    with pytest.raises(Unsupported, match=advice) as error:
        factory()
    assert __file__ in str(error.value)


@pytest.mark.parametrize(
    ("factory", "word"),
    [
        (thread_index, "thread index"),
        (barrier_of_some_threads, "a barrier of a cluster by some threads"),
        (extern, "call_extern"),
        (shuffle, "shfl"),
    ],
)
def test_refused_by_name_and_line(factory, word):
    with pytest.raises(Unsupported) as error:
        factory()
    source, start = inspect.getsourcelines(factory.func.orig_func)
    offset = next(k for k, line in enumerate(source) if "# here" in line)
    assert word in str(error.value)
    assert f"{__file__}:{start + offset}" in str(error.value)


def test_a_thread_index_that_nothing_uses_is_no_obstacle():
    @jit_kernel(Y="f32[32]", name="main", threads=32)
    def unused(Y):
        T.get_thread_binding(0)
        for i in T.Parallel(32):
            Y[i] = 1.0

    y = torch.zeros(32)
    unused()(y)
    assert y.eq(1).all()


def test_a_local_variable_that_lanes_disagree_on_is_poisoned_after_the_loop():
    @jit_kernel(Y="f32[2]", name="main", out_idx=[-1], threads=32)
    def disagree(Y):
        v = T.alloc_var("float32")
        w = T.alloc_var("float32")
        for i in T.Parallel(8):
            v = i
            w = 3.0
        Y[0] = v
        Y[1] = w

    got = disagree()()
    assert got[0].isnan()
    assert got[1] == 3.0


def test_profiling_is_refused():
    @jit_kernel(Y="f32[32]", name="main", out_idx=[-1], threads=32)
    def fine(Y):
        for i in T.Parallel(32):
            Y[i] = 1.0

    profiler = fine().get_profiler()
    profiler.assert_allclose(lambda: torch.ones(32))
    with pytest.raises(Unsupported, match="no GPU to time"):
        profiler.do_bench()


def test_a_kernel_is_refused_once_and_looked_at_again_with_a_model(monkeypatch):
    from tlmatrix.interpreter import model_extern
    from tlmatrix.interpreter.frontend import programs

    made = []
    generate = programs.generate
    monkeypatch.setattr(programs, "generate", lambda *args: made.append(1) or generate(*args))

    @jit_kernel(Y="f32[32]", name="main", threads=1)
    def kernel(Y):
        Y[0] = T.call_extern("float32", "test_refused_once", 2.0)

    messages = []
    for _ in range(3):
        with pytest.raises(Unsupported, match="test_refused_once") as refused:
            kernel()
        messages.append(str(refused.value))
    assert len(set(messages)) == 1
    assert len(made) == 1
    model_extern("test_refused_once", lambda number: 2 * number)
    y = torch.zeros(32)
    kernel()(y)
    assert y[0] == 4


@jit_kernel(X="f32[4, 32]", Y="f32[32]", name="main", threads=32)
def python_accumulator(X, Y):
    tx = T.get_thread_binding(0)
    acc = 0.0
    for i in range(4):
        acc += X[i, tx]
    Y[tx] = acc  # here


@jit_kernel(X="f32[4, 32]", Y="f32[32]", name="main", threads=32)
def name_of_two_loops(X, Y):
    tx = T.get_thread_binding(0)
    acc = T.alloc_var(T.float32, init=0.0)
    for i in range(3):
        acc += X[i, tx]
    for i in range(4):
        acc += X[i, tx]
    Y[tx] = acc


def test_a_loop_variable_after_its_loop_is_an_error_with_the_remedy():
    source, start = inspect.getsourcelines(python_accumulator.func.orig_func)
    line = start + next(k for k, text in enumerate(source) if "# here" in text)
    with pytest.raises(InterpreterError, match="main: i is used after its loop; ") as error:
        python_accumulator()
    assert "T.alloc_var" in str(error.value)
    assert f"{__file__}:{line}" in str(error.value)


def test_loops_may_share_a_name():
    y = torch.empty(32)
    name_of_two_loops()(torch.ones(4, 32), y)
    assert y.tolist() == [7.0] * 32
