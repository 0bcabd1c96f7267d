"""Sums in tensor cores are within the bounds: a model of truncated float32 accumulation."""

import pytest
import torch
from problem_cases import CPU, make_spec

from tlmatrix.check.numeric import compare
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem import family_for
from tlmatrix.spec.model.spec import Tolerance

BLOCKS = {"Ampere": (8, 1), "Hopper": (16, 2)}
"""Products of a block, and bits kept beyond those of float32."""


def accumulated(a, b, architecture):
    """a @ b: the accumulator and each block of products are aligned to the largest and cut."""
    block, more = BLOCKS[architecture]
    a, b = a.double(), b.double()
    total = torch.zeros(len(a), b.shape[1], dtype=torch.float64)
    for begin in range(0, a.shape[1], block):
        part = slice(begin, begin + block)
        terms = torch.cat([total[None], a[:, part].T[:, :, None] * b[part][:, None]])
        total = cut(cut(terms, terms.abs().amax(0), 24 + more).sum(0), None, 24)
    return total.float()


def cut(values, size, bits):
    """Values without bits below the last of `bits` of `size`, or of themselves."""
    exponent = torch.frexp(values if size is None else size)[1].double()
    unit = 2.0 ** (exponent - bits)
    return (values / unit).trunc() * unit


def bounds_of(problem):
    return ReferenceBounds(problem, Tolerance(), "sm_90")


def gemm(m, n, k, values, seed, dtype):
    case = {"m": m, "n": n, "k": k, "dtype": dtype, "out_dtype": "float32", "values": values}
    spec = make_spec("gemm", axes={name: [value] for name, value in case.items()})
    return family_for(spec).problem(spec, case, seed=seed, device=CPU)


@pytest.mark.parametrize("architecture", BLOCKS)
@pytest.mark.parametrize("values", ["opposed", "normal", "constant_rows", "ramp"])
@pytest.mark.parametrize("shape", [(1, 1, 512), (1, 2, 40), (2, 1, 2048), (16, 24, 512)])
def test_truncated_sums_of_a_gemm_are_within_its_bound(architecture, values, shape):
    for seed in range(6):
        problem = gemm(*shape, values, seed, ("float16", "bfloat16")[seed % 2])
        got = accumulated(problem.names["a"], problem.names["b"], architecture)
        bounds = bounds_of(problem)
        assert compare(got, bounds.reference["c"], bounds.error_bound("c")) is None


def test_a_sum_in_16_bits_is_found_in_one_element():
    for seed in range(6):
        problem = gemm(1, 1, 512, "opposed", seed, "float16")
        got = accumulated(problem.names["a"], problem.names["b"], "Hopper").half().float()
        bounds = bounds_of(problem)
        assert compare(got, bounds.reference["c"], bounds.error_bound("c")) is not None


def matmul(x, w):
    return x.to(torch.promote_types(x.dtype, torch.float32)) @ w.to(
        torch.promote_types(w.dtype, torch.float32)
    )


@pytest.mark.parametrize("k", [64, 512, 2048])
def test_truncated_sums_of_a_declared_product_are_within_its_bound(k):
    declaration = {
        "inputs": {
            "x": {"shape": [1, "k"], "dtype": "bfloat16"},
            "w": {"shape": ["k", 3], "dtype": "bfloat16"},
        },
        "outputs": {"y": {"dtype": "float32"}},
        "reference": f"{__name__}:matmul",
    }
    case = {"k": k, "values": "opposed"}
    spec = make_spec(declaration, axes={name: [value] for name, value in case.items()})
    for seed in range(4):
        problem = family_for(spec).problem(spec, case, seed=seed, device=CPU)
        got = accumulated(problem.names["x"], problem.names["w"], "Hopper")
        bounds = bounds_of(problem)
        assert compare(got, bounds.reference["y"], bounds.error_bound("y")) is None
