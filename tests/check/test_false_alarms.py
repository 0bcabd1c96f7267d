"""No findings for correct kernels with any tiles, order, values and lengths.

The kernels here are `packed_attention.flash`: P is rounded before it is normalised, exp2 errs by
2 ulp, tiles are taken in either order, dS is rounded. Sequences of one and two rows matter most:
there the error of the low-precision result may be almost zero by chance.
"""

import random

import pytest
import torch
from packed_attention import DISTRIBUTIONS, DTYPES, FakeSpec, attention, flash

from tlmatrix.check.numeric import compare
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.spec.model.spec import Tolerance

LENGTHS = (0, 1, 1, 1, 2, 2, 2, 3, 5, 17, 33, 64, 100)


def some_problem(number):
    """A problem of its own for every number, and a correct kernel's settings."""
    pick = random.Random(number)
    lengths = [pick.choice(LENGTHS) for _ in range(pick.randint(1, 5))]
    keys = lengths if pick.random() < 0.5 else [pick.choice(LENGTHS) for _ in lengths]
    mixed = {name: pick.choice(DISTRIBUTIONS) for name in ("q", "k", "v", "out")}
    causal = pick.random() < 0.6
    problem = attention(
        tuple(lengths),
        tuple(keys),
        heads=pick.choice([1, 2, 4]),
        dim=pick.choice([8, 16, 64]),
        dtype=DTYPES[number % 3],
        causal=causal,
        window=pick.choice([None, 1, 3, 16]) if causal else None,
        values=pick.choice(DISTRIBUTIONS) if pick.random() < 0.5 else mixed,
        seed=number,
    )
    return problem, {"tile": pick.choice([8, 16, 32, 64]), "reverse": pick.random() < 0.5}


@pytest.mark.parametrize("block", range(3))
def test_no_finding_for_correct_kernels(block):
    spec = FakeSpec(Tolerance())
    for number in range(block * 100, block * 100 + 100):
        problem, settings = some_problem(number)
        results = flash(problem, seed=number, **settings)
        bounds = ReferenceBounds(problem, spec.tolerance, "interpreter")
        for name, tensor in results.items():
            limits = bounds.error_bound(name)
            found = compare(tensor, bounds.reference[name], limits)
            assert found is None, f"{name} of problem {number}: {found}"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("k", [1, 2, 64, 1000])
def test_no_finding_for_another_order_of_summation(dtype, k):
    from test_findings import product, sums

    problem = sums(dtype, size=60, k=k)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(1))
    a, b = problem.inputs["a"].float()[:, order], problem.inputs["b"].float()[:, order]
    total = torch.zeros(60, 60)
    for at in range(0, k, 16):
        total += a[:, at : at + 16] @ b[:, at : at + 16].T
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    for result in (total.to(dtype), product(problem)["c"]):
        assert compare(result, bounds.reference["c"], bounds.error_bound("c")) is None
