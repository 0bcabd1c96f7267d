"""Results that are truncated instead of rounded, and right ones whose errors look alike."""

import math
from pathlib import Path

import pytest
import torch

from tlmatrix.check.numeric import deviations
from tlmatrix.check.rounding import one_sided
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem import family_for
from tlmatrix.spec.model.spec import Spec, Tolerance

CPU = torch.device("cpu")
TOLERANCE = Tolerance.model_validate({"q": {"floor": 1}})


def quantized(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).to(torch.int8)


def scaled(x):
    return x * 0.73


@pytest.fixture(autouse=True)
def _references_beside(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def problem_of(output, dtype="float16", values="normal", rows=16, cols=64, seed=1):
    reference = {"q": "quantized", "y": "scaled"}[output]
    axes = {"rows": rows, "cols": cols, "dtype": dtype, "values": values}
    spec = Spec.model_validate({
        "name": "made_up",
        "problem": {
            "inputs": {"x": {"shape": ["rows", "cols"], "dtype": "$dtype"}},
            "outputs": {output: {"dtype": "int8"}} if output == "q" else [output],
            "reference": f"test_one_sided:{reference}",
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


def truncated(values, dtype):
    nearest = values.to(dtype)
    bits = nearest.view(torch.int16)
    return torch.where(nearest.double().abs() > values.abs(), bits - 1, bits).view(dtype)


def codes(problem):
    x = problem.inputs["x"].double()
    return x / (x.abs().amax(-1, keepdim=True) / 127)


def test_truncated_integers_are_found_and_rounded_ones_pass():
    problem = problem_of("q")
    assert found_in(problem, codes(problem).round()) == {}
    note = found_in(problem, codes(problem).trunc())["q"].note
    assert "rounded toward zero by one" in note


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


def test_results_of_few_elements_pass():
    problem = problem_of("q", rows=1, cols=20)
    assert found_in(problem, codes(problem).trunc()) == {}
    assert math.prod(problem.outputs["q"].shape) == 20
