"""Errors by region."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tlmatrix.check.error_stats import Comparison, Regions, measure_errors
from tlmatrix.problem.model import Dim

CPU = torch.device("cpu")
PACKED = Dim("position", 7, [0, 0, 0, 2, 2, 3, 3], [0, 3, 3, 5, 7], "sequence")
HEADS = Dim("head", 2, range(2))
BATCH = Dim("batch", 3, range(3))
SHAPES = {
    "rows of a head": (PACKED, HEADS, Dim("dim", 5)),
    "elements of a head": (HEADS, PACKED),
    "heads first": (BATCH, HEADS, Dim("position", 4), Dim("dim", 3)),
    "larger than a piece": (Dim("position", 700), HEADS, Dim("dim", 64)),
    "one row": (Dim("dim", 9),),
    "no region": (Dim("m", 6), Dim("n", 4)),
    "a scalar": (),
}


def measured(name, dims, dtype=torch.float16, device=CPU):
    shape = tuple(dim.size for dim in dims)
    reference = torch.randn(shape, dtype=torch.float64)
    results = (reference + torch.randn(shape) / 100, reference + torch.randn(shape) / 100)
    got, low = (result.to(dtype).to(device) for result in results)
    return Comparison(name, got, low, reference.to(device), Regions(dims, device))


def check(made):
    """Against the reductions of `Regions`, which a test of theirs holds against a loop."""
    for each, place in made.parts():
        for index, result in enumerate((each.got.double(), each.low.double())):
            error = (result - each.reference.double()).abs()
            error[(result == each.reference) | (result.isnan() & each.reference.isnan())] = 0
            largest = each.regions.largest(error).flatten().cpu().numpy()
            squares = each.regions.sum(error**2).flatten().cpu().numpy()
            np.testing.assert_array_equal(made.largest[index, place], largest)
            np.testing.assert_allclose(made.squares[index, place], squares, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32])
@pytest.mark.parametrize("name", SHAPES)
def test_errors_of_each_region(name, dtype):
    check(measure_errors([measured(name, SHAPES[name], dtype)]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool])
def test_references_of_whole_numbers_of_any_size(dtype):
    """The difference of two int8 may be none."""
    for name in ("larger than a piece", "no region"):
        made = measured(name, SHAPES[name])
        got, low, reference = (
            (each * 100).to(dtype) for each in (made.got, made.low, made.reference)
        )
        (whole,) = measure_errors([replace(made, got=got, low=low, reference=reference)]).parts()
        check(measure_errors([whole[0]]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_tensors_measured_together_equal_separate_ones(device):
    place = torch.device(device)
    check(measure_errors([measured(name, dims, device=place) for name, dims in SHAPES.items()]))


def test_different_dtypes_keep_their_values():
    whole = measured("whole", SHAPES["no region"], torch.int32)
    whole = replace(whole, got=whole.got + 2**24 + 1, reference=whole.reference + 2**24)
    small = measured("small", SHAPES["no region"], torch.float8_e5m2)
    check(measure_errors([whole, small, measured("half", SHAPES["one row"])]))


@pytest.mark.parametrize("name", ["elements of a head", "larger than a piece"])
def test_equal_infinities_have_no_error_and_others_affect_their_region(name):
    each = measured(name, SHAPES[name])
    at = (0,) * each.got.ndim
    for tensor in (each.got, each.low, each.reference):
        tensor[at] = -torch.inf
    check(measure_errors([each]))
    each.got[at] = 1
    made = measure_errors([each])
    assert not made.within([100.0])[0]
    assert made.within([100.0])[1:].all()


@pytest.mark.parametrize("spoil", [torch.nan, torch.inf])
def test_region_is_suspect_if_low_precision_result_is_not_finite(spoil):
    each = measured("x", SHAPES["rows of a head"])
    each.low[0, 0, 0] = spoil
    within = measure_errors([replace(each, got=each.reference.half())]).within([2.0])
    assert not within[0]
    assert within[1:].all()


def test_within_uses_the_factor_of_each_tensor():
    pair = [measured("a", SHAPES["one row"]), measured("b", SHAPES["no region"])]
    pair = [replace(each, got=each.reference + 3 * (each.low - each.reference)) for each in pair]
    assert measure_errors(pair).within([3.1, 2.9]).tolist() == [True, False]
