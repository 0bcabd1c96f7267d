"""TMA descriptors of empty tensors, which TileLang's host code cannot make."""

import re

import pytest
import tilelang
import tilelang.language as T
import torch
from tilelang import tvm

from tlmatrix.interpreter import LaunchError, interpret, traced
from tlmatrix.interpreter.frontend.alignment import requirements

ROWS = 32
HOPPER = "sm_90a"


def storing_tiles(dim=64, disable_tma=False):
    """Tiles leave through shared memory, which is TMA by itself; two blocks whatever there is."""
    tokens = T.dynamic("num_tokens")

    @T.prim_func
    def storing(X: T.Tensor((tokens, dim), "float16"), Y: T.Tensor((tokens, dim), "float16")):
        with T.Kernel(2, threads=128) as block:
            tile = T.alloc_shared((ROWS, dim), "float16")
            for step in T.serial(T.ceildiv(tokens, 2 * ROWS)):
                row = (2 * step + block) * ROWS
                for i, j in T.Parallel(ROWS, dim):
                    tile[i, j] = X[row + i, j]
                T.copy(tile, Y[row, 0], disable_tma=disable_tma)

    return storing


WITHOUT = {tilelang.PassConfigKey.TL_DISABLE_TMA_LOWER: True}
stored = tilelang.jit(storing_tiles)
stored_without = tilelang.jit(storing_tiles, pass_configs=WITHOUT)


@tilelang.jit
def loaded(explicit):
    """Tiles come through shared memory, by TMA where it is asked for."""
    tokens = T.dynamic("num_tokens")

    @T.prim_func
    def loading(X: T.Tensor((tokens, 64), "float16"), Y: T.Tensor((tokens, 64), "float16")):
        with T.Kernel(2, threads=128) as block:
            tile = T.alloc_shared((ROWS, 64), "float16")
            full = T.alloc_barrier(128)
            for step in T.serial(T.ceildiv(tokens, 2 * ROWS)):
                row = (2 * step + block) * ROWS
                if explicit:
                    T.tma_copy(X[row : row + ROWS, 0:64], tile, barrier=full)
                    T.mbarrier_arrive(full)
                    T.mbarrier_wait_parity(full, step % 2)
                else:
                    T.copy(X[row, 0], tile)
                for i, j in T.Parallel(ROWS, 64):
                    Y[row + i, j] = tile[i, j]

    return loading


@tilelang.jit
def multiplied(dim=64):
    """A pipelined product, which TileLang turns into a TMA producer and a consumer."""
    m, k = T.dynamic("m"), T.dynamic("k8") * 8

    @T.prim_func
    def product(
        A: T.Tensor((m, k), "float16"),
        B: T.Tensor((dim, k), "float16"),
        C: T.Tensor((m, dim), "float32"),
    ):
        with T.Kernel(T.ceildiv(m, 64), threads=128) as block:
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((dim, 32), "float16")
            acc = T.alloc_fragment((64, dim), "float32")
            T.clear(acc)
            for step in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[block * 64, step * 32], a)
                T.copy(B[0, step * 32], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[block * 64, 0])

    return product


def run(kernel, rows, dim=64):
    x = torch.randn(rows, dim).half()
    y = torch.empty_like(x)
    kernel(x, y)
    assert torch.equal(x, y)


@pytest.mark.parametrize("sanitize", [False, True])
def test_a_store_that_becomes_tma_of_an_empty_tensor(sanitize):
    with interpret(arch=HOPPER, sanitize=sanitize) as session:
        run(stored(), 70)
        with pytest.raises(LaunchError) as caught:
            run(stored(), 0)
        run(stored(), 1)
    told = str(caught.value)
    words = r"kernel storing .*a TMA descriptor of an empty tensor: Y of shape \(0, 64\); where an"
    assert re.search(words + r" input is empty.*\n  at \S+test_empty_descriptors.py:\d+, in", told)
    assert not session.reports


def test_an_explicit_tma_copy_of_an_empty_tensor():
    with interpret(arch=HOPPER):
        run(loaded(True), 70)
        with pytest.raises(LaunchError, match=r"loading .*X of shape \(0, 64\)"):
            run(loaded(True), 0)


@pytest.mark.parametrize(
    ("m", "k", "which"),
    [
        (0, 32, r"A of shape \(0, 32\)"),
        (3, 0, r"A of shape \(3, 0\)"),
        (0, 0, r"A of shape \(0, 0\)"),
    ],
)
def test_factors_of_a_pipelined_product(m, k, which):
    def factors(m, k):
        return torch.ones(m, k).half(), torch.ones(64, k).half(), torch.zeros(m, 64)

    with interpret(arch=HOPPER), pytest.raises(LaunchError, match=f"product .*{which}"):
        multiplied()(*factors(m, k))
    a, b, c = factors(3, 40)
    with interpret(arch=HOPPER):
        multiplied()(a, b, c)
    assert (c == 40).all()


@pytest.mark.parametrize(
    ("make", "arch", "dim"),
    [
        pytest.param(stored, "sm_80", 64, id="no TMA before Hopper"),
        pytest.param(lambda: stored(disable_tma=True), HOPPER, 64, id="not of this copy"),
        pytest.param(
            stored_without,
            *(HOPPER, 64),
            marks=pytest.mark.filterwarnings("ignore:.*disable_tma_lower:DeprecationWarning"),
            id="not of this kernel",
        ),
        pytest.param(lambda: stored(dim=60), HOPPER, 60, id="rows of 120 bytes"),
        pytest.param(lambda: loaded(False), HOPPER, 64, id="a load outside of pipelines"),
    ],
)
def test_where_there_is_no_descriptor_nothing_is_refused(make, arch, dim):
    with interpret(arch=arch):
        run(make(), 0, dim)
        run(make(), 33, dim)


@pytest.mark.parametrize(
    "make",
    [
        stored,
        lambda: stored(disable_tma=True),
        lambda: stored(dim=60),
        multiplied,
        lambda: loaded(True),
        lambda: loaded(False),
    ],
)
def test_what_is_described_is_what_cuda_code_has_descriptors_of(make):
    with traced(arch=HOPPER):
        func = make().prim_func
    with tvm.target.Target({"kind": "cuda", "arch": HOPPER}) as target:
        source = tilelang.lower(func, target=target).kernel_source
    found = {str(func.params[k].name) for k in requirements(func, HOPPER, {}).strides}
    expected = set(re.findall(r"CUtensorMap (\w+)_desc", source))
    assert {name.removesuffix("_handle") for name in found} == expected
