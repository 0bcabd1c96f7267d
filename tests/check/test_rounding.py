"""Results that are not rounded to nearest, and right ones whose errors look alike."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tlmatrix.check.numeric import deviations
from tlmatrix.check.rounding import biases, one_sided, shared
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem import family_for
from tlmatrix.spec import load_spec
from tlmatrix.spec.model.spec import Spec, Tolerance

SPECS = Path(__file__).parents[2] / "specs"
CPU = torch.device("cpu")
LENGTHS = {"q": [70, 1, 64], "k": [33, 120, 64]}


def attention(seed=1, dtype="bfloat16", **values):
    values = {
        "dtype": dtype, "kv_heads": 2, "groups": 2, "head_dim": 32, "causal": True,
        "seqlens": LENGTHS, "values": "normal", **values,
    }  # fmt: skip
    spec = load_spec(SPECS / "gqa_varlen.yaml")
    return family_for(spec).problem(spec, values, seed=seed, device=CPU)


def gemm(seed=1, dtype="bfloat16", **values):
    values = {
        "dtype": dtype, "out_dtype": dtype, "m": 70, "n": 48, "k": 80, "transpose_b": False,
        "accumulate": False, "values": "normal", **values,
    }  # fmt: skip
    spec = load_spec(SPECS / "gemm.yaml")
    return family_for(spec).problem(spec, values, seed=seed, device=CPU)


def truncated(values, dtype):
    """Rounded toward zero."""
    nearest = values.to(dtype)
    beyond = nearest.double().abs() > values.double().abs()
    bits = nearest.view(torch.int16)
    return torch.where(beyond, bits - 1, bits).view(dtype)


def faults(problem, results):
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    assert not deviations(results, bounds), "within the error bounds of elements and regions"
    return biases(results, bounds)


def results_of(problem, change):
    return {
        name: change(name, value).to(problem.outputs[name].dtype)
        for name, value in problem.reference().items()
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", [attention, gemm])
def test_results_rounded_to_nearest_have_no_systematic_error(make, dtype):
    for seed in range(10):
        problem = make(seed, dtype)
        assert not faults(problem, results_of(problem, lambda _, value: value))
        assert not faults(problem, dict(problem.lowp()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("make", "name"), [(attention, "out"), (attention, "dq"), (gemm, "c")])
def test_a_result_that_is_truncated_is_found(make, name, dtype):
    problem = make(dtype=dtype)
    dtype = problem.outputs[name].dtype
    found = faults(
        problem, results_of(problem, lambda n, x: truncated(x, dtype) if n == name else x)
    )
    assert set(found) == {name}
    assert found[name].distance == "mean"
    assert found[name].ratio > 1.5
    assert "truncation" in found[name].note


def test_weights_that_are_truncated_make_a_systematic_error():
    """A softmax whose numerator is truncated to 16 bits, and whose sum is not."""
    problem = attention(seqlens={"q": [260], "k": [260]}, causal=False)
    q, k, v = (problem.inputs[name].float() for name in "qkv")
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * 32**-0.5
    p = (scores - scores.amax(2, keepdim=True)).exp()
    for cut, expected in ((truncated, {"out"}), (torch.Tensor.to, set())):
        out = torch.einsum("hij,jhd->ihd", cut(p, torch.bfloat16).float(), v)
        out = out / p.sum(2).T[..., None]
        assert set(faults(problem, {"out": out.bfloat16()})) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_equal_rows_share_their_rounding_error(dtype):
    """With a scale of 0 all keys of a sequence have the same dv, and all queries the same out."""
    lengths = {"q": [100, 140], "k": [90, 150]}
    for seed in range(4):
        problem = attention(seed, dtype, scale=0.0, causal=False, seqlens=lengths)
        assert not faults(problem, results_of(problem, lambda _, value: value))
    different = attention(dtype=dtype, causal=False, seqlens=lengths)
    kind = different.outputs["dv"].dtype
    assert "dv" in faults(different, {"dv": truncated(different.reference()["dv"], kind)})


def test_a_column_multiplied_by_a_rounded_factor_is_found_where_it_is():
    problem = attention(seqlens={"q": [300], "k": [300]})

    def change(name, value):
        value = value.clone()
        if name == "out":
            value[:, 3, 7] *= 1 + 2.0**-7
        return value

    found = faults(problem, results_of(problem, change))["out"]
    assert found.wrong.nonzero()[:, 1:].unique(dim=0).tolist() == [[3, 7]]


def test_an_offset_is_found():
    problem = gemm(m=300)
    scale = problem.reference()["c"].square().mean().sqrt() * 2.0**-8
    assert set(faults(problem, results_of(problem, lambda _, x: x + scale / 2))) == {"c"}


@pytest.mark.parametrize("size", [0.1, 0.5])
def test_only_errors_of_a_size_that_counts_are_reported(size):
    problem = gemm(m=1000, n=200)
    factor = 1 + size * 2.0**-8
    found = faults(problem, results_of(problem, lambda _, x: x * factor))
    assert bool(found) == (size > 0.25)


def test_structured_inputs_and_wider_tolerances_are_left_alone():
    """Errors of equal rows are equal, and of one sign."""
    for values in ("constant_rows", "equal_rows", "ramp", "one_hot"):
        problem = attention(values=values)
        assert not faults(problem, results_of(problem, lambda _, x: x))
    problem = gemm()
    cut = results_of(problem, lambda _, x: truncated(x, torch.bfloat16))
    bounds = ReferenceBounds(
        problem, Tolerance.model_validate({"default": {"floor": 1.0}}), "interpreter"
    )
    assert not biases(cut, bounds)


def test_deltas_that_all_rows_of_dk_share_are_no_systematic_error():
    """One query: the error of its delta moves every row of dk, by one amount for all."""
    problem = attention(groups=1, kv_heads=1, seqlens={"q": [1], "k": [200]}, causal=False)
    q, do = problem.inputs["q"].double()[0, 0], problem.cotangents["out"].double()[0, 0]
    k, v = (problem.inputs[name].double()[:, 0] for name in "kv")
    p = (k @ q * 32**-0.5).softmax(0)
    delta = (p @ v @ do) + 3 * 2.0**-8
    dk = torch.outer(p * (v @ do - delta) * 32**-0.5, q)[:, None].to(torch.bfloat16)
    assert not faults(problem, {"dk": dk})
    info = replace(problem.outputs["dk"], independent=None)
    alone = replace(problem, outputs={**problem.outputs, "dk": info})
    bounds = ReferenceBounds(alone, Tolerance(), "interpreter")
    assert biases({"dk": dk}, bounds), "the information is what prevents the report"


def test_a_delta_that_rows_of_one_sequence_share_is_no_systematic_error():
    """One of three sequences has one query; in the others many deltas are shared by few rows."""
    lengths = {"q": [191, 1, 191], "k": [204, 214, 204]}
    problem = attention(groups=1, kv_heads=1, seqlens=lengths, causal=False)
    q, keys = problem.inputs["q"].double()[191, 0], slice(204, 418)
    p = (problem.inputs["k"].double()[keys, 0] @ q * 32**-0.5).softmax(0)
    dk = problem.reference()["dk"].clone()
    dk[keys, 0] -= torch.outer(p * 3 * 2.0**-8 * 32**-0.5, q)
    assert not faults(problem, {"dk": dk.to(torch.bfloat16)})


# Truncated results --------------------------------------------------------------------------------


TOLERANCE = Tolerance.model_validate({"q": {"floor": 1}, "u": {"floor": 1}})


def quantized(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).to(torch.int8)


def unsigned(x):
    return torch.round(levels(x.double())).to(torch.uint8)


def levels(x):
    low, high = (each.unsqueeze(1) for each in x.aminmax(dim=1))
    return (x - low) / ((high - low) / 255)


def scaled(x):
    return x * 0.73


def near_one(x):
    return x * 1e-5 + 1.0004


def divided_by_a_rounded_mean(x):
    return x / x.float().abs().mean(-1, keepdim=True).to(x.dtype)


def row_means(x):
    return x.mean(-1)


def outer_product(x):
    return (x[:, :1] * 0.73) @ x[:1]


@pytest.fixture(autouse=True)
def _references_beside(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def problem_of(
    output, dtype="float16", values="normal", rows=16, cols=64, seed=1, reference="scaled"
):
    reference = {"q": "quantized", "u": "unsigned"}.get(output, reference)
    axes = {"rows": rows, "cols": cols, "dtype": dtype, "values": values}
    dtypes = {"q": "int8", "u": "uint8"}
    packed = "rows" if isinstance(rows, int) else "sum(rows)"
    spec = Spec.model_validate({
        "name": "made_up",
        "problem": {
            "inputs": {"x": {"shape": [packed, "cols"], "dtype": "$dtype"}},
            "outputs": {output: {"dtype": dtypes[output]}} if output in dtypes else [output],
            "reference": f"test_rounding:{reference}",
        },
        "entry": "some.module:entry",
        "axes": {name: [value] for name, value in axes.items()},
    })  # fmt: skip
    return family_for(spec).problem(spec, axes, seed=seed, device=CPU)


def found_in(problem, result):
    (name,) = problem.outputs
    bounds = ReferenceBounds(problem, TOLERANCE, "interpreter")
    got = result.to(problem.outputs[name].dtype)
    assert not deviations({name: got}, bounds), "within the error bounds"
    return one_sided({name: got}, bounds)


def codes(problem):
    x = problem.inputs["x"].double()
    return x / (x.abs().amax(-1, keepdim=True) / 127)


def test_truncated_integers_are_found_and_rounded_ones_pass():
    problem = problem_of("q")
    assert found_in(problem, codes(problem).round()) == {}
    note = found_in(problem, codes(problem).trunc())["q"].note
    assert "rounded toward zero by one" in note


def test_truncated_unsigned_integers_are_found():
    problem = problem_of("u")
    exact = levels(problem.inputs["x"].double())
    assert found_in(problem, exact.round()) == {}
    assert "rounded toward zero by one" in found_in(problem, exact.trunc())["u"].note


def test_zero_points_of_16_bits_pass():
    for seed in range(8):
        problem = problem_of("u", dtype="float32", seed=seed)
        x = problem.inputs["x"].double()
        scale = (x.amax(1, keepdim=True) - x.amin(1, keepdim=True)) / 255
        offset = torch.rand(16, 1, generator=torch.Generator().manual_seed(seed)) - 0.5
        assert found_in(problem, (levels(x + offset * scale) + offset).round().clamp(0, 255)) == {}


def test_integers_rounded_away_from_zero_are_found():
    problem = problem_of("q")
    away = codes(problem).abs().ceil() * codes(problem).sign()
    assert "rounded away from zero" in found_in(problem, away.clamp(-127, 127))["q"].note


def test_stochastic_rounding_and_scales_of_16_bits_pass():
    for seed in range(8):
        problem = problem_of("q", seed=seed)
        exact = codes(problem)
        noise = torch.rand(exact.shape, generator=torch.Generator().manual_seed(seed))
        assert found_in(problem, (exact + noise).floor().clamp(-127, 127)) == {}
        for factor in (1 - 2.0**-9, 1 + 2.0**-9):
            assert found_in(problem, (exact * factor).round().clamp(-127, 127)) == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("values", ["normal", "outlier_rows", "opposed"])
def test_truncated_results_of_a_declared_problem_are_found(dtype, values):
    problem = problem_of("y", dtype, values)
    exact = problem.reference()["y"]
    assert found_in(problem, exact) == {}
    found = found_in(problem, truncated(exact, getattr(torch, dtype)))
    assert "rounded toward zero by more than half a step" in found["y"].note


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("values", ["normal", "cancelling", "constant_rows", "ramp", "one_hot"])
def test_errors_that_all_elements_share_pass(dtype, values):
    unit = torch.finfo(getattr(torch, dtype)).eps / 2
    for rows in (1, 16):
        problem = problem_of("y", dtype, values, rows=rows)
        exact = problem.reference()["y"]
        for step in range(-8, 9):
            assert found_in(problem, exact * (1 + unit * step / 8)) == {}


# Parts of sums ------------------------------------------------------------------------------------


def weighted(x, w):
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * w.to(wide)).to(x.dtype)


def summed(dtype="float16", seed=1, rows=33, **values):
    axes = {"rows": rows, "cols": 257, "dtype": dtype, **values}
    spec = Spec.model_validate({
        "name": "made_up",
        "problem": {
            "inputs": {
                "x": {"shape": ["rows", "cols"], "dtype": "$dtype"},
                "w": {"shape": ["cols"], "dtype": "$dtype", "grad": True},
            },
            "outputs": ["y"],
            "reference": "test_rounding:weighted",
        },
        "entry": "some.module:entry",
        "axes": {name: [value] for name, value in axes.items()},
    })  # fmt: skip
    return family_for(spec).problem(spec, axes, seed=seed, device=CPU)


def test_halves_that_cancel_are_inputs_of_some_cases_with_sums_of_enough_rows():
    found = [summed(seed=seed).names["values"] for seed in range(100)]
    assert 10 < found.count("halves") < 35
    assert "halves" not in [summed(seed=seed, rows=15).names["values"] for seed in range(100)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [16, 33, 80])
def test_parts_of_a_sum_over_rows_that_are_rounded_are_found(rows, dtype):
    kind = getattr(torch, dtype)
    for seed in range(8):
        problem = summed(dtype, seed, rows, values="halves")
        terms = problem.names["dy"].double() * problem.inputs["x"].double()
        bounds = ReferenceBounds(problem, Tolerance(), "interpreter")

        def wrong(total, bounds=bounds):
            return bool(deviations({"dw": total.to(kind)}, bounds))

        parts = torch.stack([part.sum(0) for part in terms.split(8)])
        assert wrong(parts.to(kind).double().sum(0))
        assert not wrong(parts.float().sum(0))
        assert not wrong(terms.to(kind).double().sum(0)), "each term may be rounded"


@pytest.mark.parametrize("transpose_a", [False, True])
def test_parts_of_a_product_along_k_that_are_rounded_are_found(transpose_a):
    problem = gemm(values="cancelling", transpose_a=transpose_a)
    a, b = (problem.inputs[name].double() for name in "ab")
    a = a.T if transpose_a else a
    parts = torch.stack([a[:, :40] @ b[:40], a[:, 40:] @ b[40:]])
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    assert not deviations({"c": parts.sum(0).bfloat16()}, bounds)
    assert deviations({"c": parts.bfloat16().double().sum(0).bfloat16()}, bounds)


def test_halves_of_k_that_cancel_are_inputs_of_some_products():
    spec, values = load_spec(SPECS / "gemm.yaml"), dict(gemm().values)
    del values["values"]
    problems = [family_for(spec).problem(spec, values, seed=n, device=CPU) for n in range(200)]
    assert 8 < [each.names["values"] for each in problems].count("cancelling") < 35


# Few elements -------------------------------------------------------------------------------------


def test_results_of_few_elements_pass():
    problem = problem_of("q", rows=1, cols=20)
    assert found_in(problem, codes(problem).trunc()) == {}
    assert math.prod(problem.outputs["q"].shape) == 20


# Errors that elements share ----------------------------------------------------------------------


def shares(problem, values):
    (name,) = problem.outputs
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    got = values.to(problem.outputs[name].dtype)
    assert not deviations({name: got}, bounds), "within the error bounds"
    return shared({name: got}, bounds)


def factors(dtype, *shape, seed=1):
    """Numbers near 1, rounded to a dtype and divided by what they were before."""
    exact = 1 + torch.rand(shape, generator=torch.Generator().manual_seed(seed)).double()
    return exact.to(getattr(torch, dtype)).double() / exact


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "axis"), [((16, 1), "cols"), ((1, 64), "rows")])
def test_a_factor_in_sixteen_bits_is_found(dtype, shape, axis):
    for seed in range(5):
        problem = problem_of("y", dtype, seed=seed)
        found = shares(problem, problem.reference()["y"] * factors(dtype, *shape, seed=seed))
        assert f"those along {axis} share an error" in found["y"].note
        assert "a factor kept in 16 bits, or of a sum" in found["y"].note


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("values", ["normal", "large", "cancelling", "ramp", "constant_rows"])
@pytest.mark.parametrize("reference", ["scaled", "near_one"])
def test_arithmetic_in_float32_shares_nothing(dtype, values, reference):
    for seed in range(5):
        for rows, cols in ((1, 1000), (16, 64), (200, 9)):
            problem = problem_of("y", dtype, values, rows, cols, seed, reference)
            exact = problem.reference()["y"]
            for shape in ((rows, cols), (rows, 1)):
                noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
                assert shares(problem, exact * (1 + noise * 2.0**-23)) == {}


def test_factors_of_sequences_are_found_beside_an_empty_one():
    problem = problem_of("y", rows=[8, 0, 16])
    exact = problem.reference()["y"]
    assert shares(problem, exact) == {}
    assert "share an error" in shares(problem, exact * factors("float16", 1, 64))["y"].note


def test_a_vector_has_one_group():
    problem = problem_of("y", rows=1000, reference="row_means")
    exact = problem.reference()["y"]
    assert shares(problem, exact) == {}
    assert "share an error" in shares(problem, exact * (1 + 2.0**-12.5))["y"].note


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_elements_rounded_twice_share_nothing(dtype):
    for seed in range(20):
        problem = problem_of("y", dtype, seed=seed)
        once = (problem.inputs["x"].double() * 0.9).to(getattr(torch, dtype)).double()
        assert shares(problem, once * (0.73 / 0.9)) == {}


def test_a_kernel_may_round_what_the_reference_rounds():
    for seed in range(5):
        problem = problem_of("y", seed=seed, reference="divided_by_a_rounded_mean")
        exact = problem.reference()["y"]
        assert shares(problem, exact * factors("float16", 16, 1, seed=seed)) == {}


def test_operands_of_products_may_be_rounded():
    for seed in range(5):
        problem = problem_of("y", seed=seed, reference="outer_product")
        exact = problem.reference()["y"]
        assert shares(problem, exact * factors("float16", 16, 1, seed=seed)) == {}
