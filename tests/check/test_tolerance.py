"""Error bounds by region, relative to values, and as the spec sets them."""

from dataclasses import replace

import pytest
import torch
from packed_attention import DTYPES, FakeSpec, attention, flash, run

from tlmatrix.check.error_stats import Regions
from tlmatrix.check.numeric import compare
from tlmatrix.check.tolerance import ReferenceBounds, error_bound
from tlmatrix.problem.model import Dim, TensorInfo
from tlmatrix.spec.model.spec import Tolerance

PACKED = Dim("position", 7, [0, 0, 0, 2, 2, 3, 3], [0, 3, 3, 5, 7], "sequence")
HEADS = Dim("head", 2, range(2))
INSIDE = Dim("dim", 5)
CPU = torch.device("cpu")


def test_region_reductions_equal_a_loop():
    regions = Regions((PACKED, HEADS, INSIDE), CPU)
    values = torch.rand(7, 2, 5, dtype=torch.float64)
    for region in range(4):
        rows = [row for row, number in enumerate(PACKED.region) if number == region]
        for head in range(2):
            part = values[rows, head]
            at = (region, head, 0)
            assert regions.elements[at] == part.numel()
            assert regions.sum(values)[at] == pytest.approx(float(part.sum()))
            assert regions.largest(values)[at] == (part.max() if part.numel() else 0)
            mean = float(part.square().mean().sqrt()) if part.numel() else 0
            assert regions.rms(values)[at] == pytest.approx(mean)
    whole = regions.rms_of_all(regions.rms(values))
    assert float(whole) == pytest.approx(float(values.square().mean().sqrt()))
    assert torch.equal(regions.spread(regions.sum(values))[3], regions.sum(values)[2])


def test_regions_raise_for_a_dim_with_too_few_entries():
    with pytest.raises(ValueError, match="position has 8 entries and 7 regions"):
        Regions((replace(PACKED, size=8),), CPU)


def scaled(problem, factor):
    """The same problem with every value, and so every error, times a power of two."""

    def times(make):
        return lambda: {name: tensor * factor for name, tensor in make().items()}

    outputs = {
        name: replace(
            info,
            magnitude=lambda info=info: info.magnitude() * factor,
            spread=info.spread and (lambda info=info: info.spread() * factor),
        )
        for name, info in problem.outputs.items()
    }
    return replace(
        problem, outputs=outputs, reference=times(problem.reference), lowp=times(problem.lowp)
    )


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda d: str(d)[6:])
def test_bound_scales_with_the_values(dtype):
    problem = attention(dtype=dtype)
    tiny = scaled(problem, 2.0**-20)
    small = ReferenceBounds(tiny, Tolerance(), "interpreter").error_bound("out")
    large = ReferenceBounds(problem, Tolerance(), "interpreter").error_bound("out")
    assert torch.allclose(small.element * 2**20, large.element, rtol=1e-6)
    assert torch.allclose(small.region * 2**20, large.region, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_bound_has_a_floor_if_rounding_is_exact(dtype):
    problem = attention((1, 2), dtype=dtype)
    lucky = replace(problem, lowp=problem.reference)
    bounds = ReferenceBounds(lucky, Tolerance(), "interpreter")
    for name, info in problem.outputs.items():
        assert (bounds.error_bound(name).element >= info.roundoff * info.magnitude() / 4).all()
        assert (bounds.error_bound(name).region > 0).all()


def test_floor_of_the_rms_is_below_that_of_an_element():
    bounds = ReferenceBounds(attention((64, 100)), Tolerance(), "interpreter").error_bound("out")
    largest = bounds.regions.largest(bounds.element)
    assert (largest > 2 * bounds.region)[:2].all()
    assert float(bounds.whole) <= float(bounds.region.max())


def test_rms_floor_of_rows_that_share_a_rounding_error_is_that_of_one_row():
    reference = torch.ones(64, 8, dtype=torch.float64)
    dims = (Dim("row", 64), Dim("dim", 8))

    def of(independent):
        info = TensorInfo(
            "dk", dims, torch.float16, 2.0**-11, lambda: 10 * reference, lambda: 4 * reference,
            independent=independent,
        )  # fmt: skip
        return float(error_bound(info, reference, None, Tolerance().for_tensor("dk", "")).region)

    one, shared = of(lambda: torch.tensor(1)), of(lambda: torch.tensor(16))
    assert one > 2.0**-11 * 3 * 4
    assert one > 2 * shared > 2 * of(None)
    assert of(lambda: torch.tensor(1000)) == of(None)


def test_factor_and_floor_come_from_the_spec_by_tensor_and_architecture():
    problem = attention()
    tolerance = Tolerance.model_validate(
        {
            "default": {"factor": 2, "floor": 0.0},
            "dq": {"factor": 3},
            "by_arch": {"sm_100": {"dq": {"factor": 6}}},
        }
    )
    here, there = (ReferenceBounds(problem, tolerance, arch) for arch in ("sm_90", "sm_100"))
    error = (problem.lowp()["out"].double() - problem.reference()["out"]).abs()
    assert torch.equal(
        here.error_bound("out").element[:17, 1], (2 * error[:17, 1].max()).expand(17, 16)
    )
    assert torch.allclose(there.error_bound("dq").element, 2 * here.error_bound("dq").element)
    assert torch.equal(there.error_bound("dk").element, here.error_bound("dk").element)


def test_numeric_floor_is_added_unchanged():
    problem = attention()
    tolerance = Tolerance.model_validate({"default": {"floor": 0.5}})
    bounds = ReferenceBounds(problem, tolerance, "interpreter").error_bound("out")
    assert (bounds.element >= 0.5).all()
    assert (bounds.element < 0.51).all()


@pytest.mark.parametrize("factor", [0.01, 2])
def test_tolerance_can_be_too_small(factor):
    tolerance = Tolerance.model_validate({"default": {"factor": factor, "floor": 0.0}})
    found = run(attention((64, 100)), flash, tolerance=tolerance)
    assert bool(found) == (factor < 1)


def test_bound_without_magnitude_uses_the_reference():
    info = TensorInfo("y", (Dim("row", 4), Dim("col", 3)), torch.float16, 2.0**-11)
    reference = torch.full((4, 3), 3.0, dtype=torch.float64)
    allowance = FakeSpec(Tolerance()).tolerance.for_tensor("y", "sm_90")
    bounds = error_bound(info, reference, None, allowance)
    assert ((bounds.element > 3 * 2.0**-11) & (bounds.element < 40 * 2.0**-11)).all()
    nothing = error_bound(info, torch.zeros_like(reference), None, allowance)
    assert (nothing.element < 1e-6).all()


def test_dense_batch_has_a_region_per_head_and_entry():
    dims = (Dim("batch", 2, range(2)), Dim("position", 3), Dim("head", 4, range(4)), INSIDE)
    assert Regions(dims, CPU).shape == (2, 1, 4, 1)
    assert Regions((), CPU).shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_values_flushed_to_zero_are_within_the_bound(dtype):
    """exp2 of less than -126 is 0 on a GPU: a probability below that, times its value, is lost."""
    info = TensorInfo("out", (Dim("row", 1), Dim("dim", 4)), dtype, torch.finfo(dtype).eps / 2)
    reference = torch.tensor([[2.0**-126, 2.0**-127, 3e-39, -7e-38]], dtype=torch.float64)
    allowance = FakeSpec(Tolerance()).tolerance.for_tensor("out", "sm_90")
    within = error_bound(info, reference, reference.to(dtype), allowance)
    assert (within.element >= reference.abs()).all()
    assert (within.region >= reference.square().mean().sqrt()).all()
    assert (within.element < 2.0**-110).all() or dtype == torch.float16


def test_float64_is_not_flushed():
    info = TensorInfo("out", (Dim("row", 1), Dim("dim", 1)), torch.float64, 2.0**-53)
    reference = torch.tensor([[2.0**-127]], dtype=torch.float64)
    within = error_bound(
        info, reference, reference, FakeSpec(Tolerance()).tolerance.for_tensor("out", "sm_90")
    )
    assert (within.element < reference).all()


@pytest.mark.parametrize("count", [1, 3])
def test_an_element_within_its_bound_does_not_fail_its_region(count):
    reference = torch.linspace(1.0, 2.0, count, dtype=torch.float64)[None]
    info = TensorInfo(
        "c", (Dim("m", 1, range(1)), Dim("n", count)), torch.float32, 2.0**-24,
        lambda: reference * 4, lambda: reference * 0,
    )  # fmt: skip
    bound = error_bound(info, reference, None, Tolerance().for_tensor("c", ""))
    for element in range(count):
        got = reference.clone()
        got[0, element] += 0.999 * bound.element[0, element]
        assert compare(got, reference, bound) is None
        got[0, element] += 0.01 * bound.element[0, element]
        assert compare(got, reference, bound) is not None


def test_a_subnormal_unit_of_float64_is_within_the_bound_of_zero():
    zero = torch.zeros(1, 4, dtype=torch.float64)
    dims = (Dim("row", 1), Dim("dim", 4))
    info = TensorInfo("y", dims, torch.float64, 2.0**-53, lambda: zero, lambda: zero)
    bound = error_bound(info, zero, zero, Tolerance().for_tensor("y", ""))
    assert compare(zero + 2.0**-1074, zero, bound) is None
    assert compare(zero + 2.0**-1060, zero, bound) is not None
