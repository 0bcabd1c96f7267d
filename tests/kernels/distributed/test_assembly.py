"""TileLang's code of kernels with flags on Hopper: where threads wait, and which raise flags."""

import functools
import re

import pytest
import tilelang
from tilelang import tvm

from tlmatrix_kernels.distributed.gemm_ordered import gemm_on_arrival, gemm_signalling
from tlmatrix_kernels.gemm.kernel import gemm_kernel

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})


FACTORIES = {"plain": gemm_kernel, "waiting": gemm_on_arrival, "signalling": gemm_signalling}
WHOLE = ("float16", "float16", False, True, "wide")


@functools.cache
def lowered(name, *options):
    with TARGET, tvm.transform.PassContext(opt_level=3):
        return tilelang.lower(FACTORIES[name].get_tir(*options), target=TARGET).kernel_source


def cuda_source(name, *options):
    source = lowered(name, *options)
    return source[source.index('extern "C" __global__ void __launch_bounds__') :]


def loops(source):
    """The two roles' loops over K, names and the tile's place apart."""
    found = re.findall(r"\n    for \(int (?:step|bk)\w* = 0; .*?\n    }\n", source, re.DOTALL)
    assert len(found) == 2, "one loads, one multiplies"
    names = {r"step(_\w+)?|bk(_\w+)?": "step", r"\b\w+_desc\b": "desc"}
    for name, common in names.items():
        found = [re.sub(rf"\b(?:{name})\b", common, loop) for loop in found]
    place = re.compile(r"\(\(?\(\(int\)blockIdx\.[xy]\) \* \d+\)|m_1|\bn\b|\(bm\w* \* 128\)")
    return [re.sub(r"[() ]", "", place.sub("place", loop)) for loop in found]


@pytest.fixture(scope="module")
def plain():
    return cuda_source("plain", "float16", "float16", False, False, False, True, "wide")


@pytest.fixture(scope="module")
def waiting():
    return cuda_source("waiting", *WHOLE)


@pytest.fixture(scope="module")
def signalling():
    return cuda_source("signalling", *WHOLE)


def test_the_loops_over_k_are_those_of_the_plain_kernel(plain, waiting, signalling):
    loading, multiplying = loops(plain)
    for source in (waiting, signalling):
        assert source.startswith('extern "C" __global__ void __launch_bounds__(384, 1)')
        its_loading, its_multiplying = loops(source)
        assert its_multiplying == multiplying
        assert its_loading.count("tma_load") == loading.count("tma_load") == 2
        assert len(its_loading.splitlines()) == len(loading.splitlines())


def test_all_threads_wait_before_warp_specialization(waiting):
    assert waiting.index("tlm_wait_ge_acquire_sys(") < waiting.index(
        "if (((int)threadIdx.x) < 128)"
    )
    assert "half_t* __restrict__ A" not in waiting, "what arrives is loaded by TMA, behind the wait"


def test_storing_threads_signal_after_their_stores(signalling):
    split = signalling.index("if (((int)threadIdx.x) < 128)")
    other_role = signalling.index("} else {", split)
    stored = signalling.rindex("*(uint1*)(C + ")
    assert split < other_role < stored < signalling.index("tlm_block_fetch_add_release_sys(")
    assert "__syncthreads()" not in signalling[split:], "only 256 of 384 threads would come to it"


def test_loads_of_incoming_rows_are_coherent():
    source = cuda_source("waiting", "float16", "float16", False, False)
    head = source[: source.index("{")]
    assert "half_t* A" in head, "neither const nor __restrict__: no load ahead of the wait"
    assert "const half_t* __restrict__ B" in head
