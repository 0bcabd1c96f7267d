"""Delays in the CUDA source of kernels, and the option `--perturb`.

The sources are those that TileLang generates: sm_90a with warp roles, TMA and wgmma; sm_80.
"""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import tilelang
import tilelang.language as T
from tilelang import tvm

from jit_kernel import jit_kernel
from tlmatrix.backend import BackendUnavailableError, backend_named, kernel_cache, perturb
from tlmatrix.backend.perturb import perturbed
from tlmatrix.backend.perturb.seed import ADDRESS
from tlmatrix.interpreter import traced
from tlmatrix.matrix import Case
from tlmatrix.run.result import CaseResult, Status

DELAY = re.compile(r"  tlm_delay\(tlm_s, (\d+), (tlm_n(?:\+\+)?|0)\);")


@jit_kernel(A="f16[128, 256]", C="f32[128, 128]", threads=256)
def roles(A, C):
    s = T.alloc_shared((2, 128, 64), "float16")
    acc = T.alloc_fragment((128, 128), "float32")
    full = T.alloc_barrier([128, 128])
    empty = T.alloc_barrier([128, 128])
    if T.get_thread_binding() >= 128:
        for i in T.serial(4):
            T.mbarrier_wait_parity(empty[i % 2], (i // 2 + 1) % 2)
            T.tma_copy(A[0:128, i * 64 : i * 64 + 64], s[i % 2, :, :], barrier=full[i % 2])
            T.mbarrier_arrive(full[i % 2])
    else:
        T.clear(acc)
        for i in T.serial(4):
            T.mbarrier_wait_parity(full[i % 2], i // 2 % 2)
            T.wgmma_gemm(s[i % 2, :, :], s[i % 2, :, :], acc, False, True)
            T.wait_wgmma(0)
            T.mbarrier_arrive(empty[i % 2])
        T.copy(acc, C)


@jit_kernel(A="f16[64, 256]", Sum="f32[64, 64]", threads=128)
def pipeline(A, Sum):
    s = T.alloc_shared((64, 64), "float16")
    acc = T.alloc_fragment((64, 64), "float32")
    T.clear(acc)
    for i in T.Pipelined(4, num_stages=2):
        T.copy(A[0:64, i * 64 : i * 64 + 64], s)
        T.gemm(s, s, acc, transpose_B=True)
    for i, j in T.Parallel(64, 64):
        T.atomic_add(Sum[i, j], acc[i, j])


@jit_kernel(A="f32[64]", B="f32[64]", threads=64)
def handed_over(A, B):
    s = T.alloc_shared((64,), "float32")
    tx = T.get_thread_binding()
    s[tx] = A[tx]
    T.sync_threads()
    B[tx] = s[63 - tx]


def lower(factory, arch):
    with traced(arch=arch):
        kernel = factory()
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    with target:
        return tilelang.lower(kernel.prim_func, target=target).kernel_source


@pytest.fixture(scope="module")
def sources():
    """The CUDA source of each kernel, by the calls that it must have."""
    return {"roles": lower(roles, "sm_90a"), "pipeline": lower(pipeline, "sm_80")}


def sites(lines):
    """The statements of a kernel that stand beside a delay, with the sites of their delays."""
    for line, following in pairwise(lines):
        for delay, statement in ((line, following), (following, line)):
            if found := DELAY.fullmatch(delay):
                yield int(found[1]), statement.strip()


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "roles",
            ["].wait(", "tl::tma_load(", "].arrive(", "tl::wait_wgmma<0>(", "__syncthreads("],
        ),
        ("pipeline", ["tl::cp_async_wait<", "tl::cp_async_commit(", "__syncthreads(", "AtomicAdd"]),
    ],
)
def test_delays_stand_on_both_sides_of_synchronization(sources, name, calls):
    lines = perturbed(sources[name], ADDRESS).split("\n")
    beside = list(sites(lines))
    for call in calls:
        at = [number for number, statement in beside if call in statement]
        assert len(at) == 2 * sum(call in line for line in lines), call
    numbers = [int(found[1]) for line in lines if (found := DELAY.fullmatch(line))]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("name", ["roles", "pipeline"])
def test_nothing_else_changes(sources, name):
    changed = perturbed(sources[name], ADDRESS)
    head, _, rest = changed.partition("\n// Delays of tlmatrix")
    kept = rest[rest.index('extern "C" __global__ void __launch') :].split("\n")
    assert head + "\n".join(line for line in kept if "tlm_" not in line) == sources[name]
    assert f"{ADDRESS:#x}" in changed
    assert perturbed("int f() { __syncthreads(); }", ADDRESS) == "int f() { __syncthreads(); }"


def test_no_delay_between_products_that_the_compiler_keeps_in_flight(sources):
    lines = perturbed(sources["roles"], ADDRESS).split("\n")
    begin = next(at for at, line in enumerate(lines) if "tl::warpgroup_arrive()" in line)
    end = next(at for at, line in enumerate(lines) if "tl::warpgroup_commit_batch()" in line)
    assert DELAY.fullmatch(lines[begin - 1])
    assert not any("tlm_" in line for line in lines[begin:end])


def test_delays_that_some_lanes_skip_are_not_counted(sources):
    lines = perturbed(sources["roles"], ADDRESS).split("\n")
    load = next(at for at, line in enumerate(lines) if "tl::tma_load(" in line)
    assert DELAY.fullmatch(lines[load - 1])[2] == "tlm_n"
    assert DELAY.fullmatch(lines[load + 1])[2] == "tlm_n"
    wait = next(at for at, line in enumerate(lines) if "tl::wait_wgmma<0>" in line)
    assert DELAY.fullmatch(lines[wait + 1])[2] == "tlm_n++"


KERNEL = """extern "C" __global__ void f() {
  if (%s) {
    __syncwarp();
  } else {
    __syncwarp();
  }
  __syncwarp();
}"""


@pytest.mark.parametrize(
    ("condition", "together"),
    [
        ("((int)threadIdx.x) == 0", False),
        ("((int)threadIdx.x) < 16", False),
        ("(((int)threadIdx.x) & 31) < 8", False),
        ("tl::tl_shuffle_elect<128>()", False),
        ("256 <= ((int)threadIdx.x)", True),
        ("((int)threadIdx.x) < 32", True),
        ("0 < step", True),
    ],
)
def test_conditions_that_part_a_warp(condition, together):
    counts = DELAY.findall(perturbed(KERNEL % condition, ADDRESS))
    counted = [count == "tlm_n++" for _, count in counts[1:]]
    assert counted == [together] * 4 + [True] * 2


def test_the_key_of_a_kernel_has_the_delays_and_not_the_seed(monkeypatch):
    keyed = kernel_cache._with_nvcc(dict)
    monkeypatch.delenv(perturb.SEED, raising=False)
    plain = keyed()
    monkeypatch.setenv(perturb.SEED, "0")
    delayed = keyed()
    monkeypatch.setenv(perturb.SEED, "7")
    assert delayed == keyed() != plain


def test_hook_of_tilelang_inserts_the_delays():
    from tvm_ffi import remove_global_func

    try:
        perturb.install()
        assert "tlm_delay(tlm_s, 1, tlm_n++);" in lower(handed_over, "sm_80")
    finally:
        remove_global_func("tilelang_callback_cuda_postproc")


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("interpreter", "--perturb 7: needs the backend cuda, got interpreter"),
        ("compile", "--perturb 7: needs the backend cuda, got compile"),
        ("auto", "--perturb 7: PyTorch sees no GPU here"),
        ("cuda", "--perturb 7: PyTorch sees no GPU here"),
    ],
)
def test_refused_without_a_gpu(backend, words, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(BackendUnavailableError, match=re.escape(words)):
        backend_named(backend, perturb=7)
    assert perturb.SEED not in os.environ


@pytest.mark.cuda
@pytest.mark.parametrize("seed", [0, 3])
def test_right_kernel_passes_on_a_gpu(seed):
    case = "specs/gemm_split_k.yaml", "--values", '{"k": 512, "m": 64, "n": 128, "splits": 2}'
    command = [sys.executable, "-m", "tlmatrix", "repro", *case, "--backend", "cuda"]
    root = Path(__file__).resolve().parents[2]
    command += ["--perturb", str(seed)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert f"delays of --perturb {seed}" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def test_repro_command_has_the_seed():
    case = Case("doubled", {"n": 3})
    result = CaseResult.of(case, "doubled.yaml", Status.FAILED, requested="cuda", perturb=7)
    assert result.command.endswith("--backend cuda --perturb 7")
    assert CaseResult.from_json(result.to_json()) == result
    result = CaseResult.of(case, "doubled.yaml", Status.FAILED)
    assert "--perturb" not in result.command
