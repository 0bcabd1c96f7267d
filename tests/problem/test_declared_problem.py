"""Problems declared in YAML: shapes, dtypes, autograd and located errors."""

from pathlib import Path

import declared_references
import numpy as np
import pytest
import torch
from problem_cases import CPU, make_spec

from tlmatrix.check.numeric import deviations
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem import family_for
from tlmatrix.problem.distributions import DISTRIBUTIONS
from tlmatrix.problem.relations.user import with_user_relations
from tlmatrix.spec import load_spec
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import Tolerance

NORM = {
    "inputs": {
        "x": {"shape": ["rows", "cols"], "dtype": "$dtype", "grad": True},
        "w": {"shape": ["cols"], "dtype": "$dtype", "grad": True},
    },
    "outputs": ["y"],
    "reference": "declared_references:rms_norm",
}
VALUES = {"rows": 3, "cols": 8, "dtype": "float16", "values": "normal"}


@pytest.fixture(autouse=True)
def _references_beside(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def make(problem=NORM, values=VALUES, *, seed=1, **fields):
    fields.setdefault("axes", {axis: [value] for axis, value in values.items()})
    spec = make_spec(problem, **fields)
    return family_for(spec).problem(spec, values, seed=seed, device=CPU)


def one_input(reference, **more):
    inputs = {"x": {"shape": ["rows", "cols"], "dtype": "$dtype", "grad": True, **more}}
    return {"inputs": inputs, "outputs": ["y"], "reference": f"declared_references:{reference}"}


def test_gradients_of_a_declared_norm_are_float64_autograd():
    problem = make()
    names = problem.names
    assert names["x"].shape == (3, 8)
    assert names["dtype"] is torch.float16
    assert problem.returns == ("y",)
    assert problem.gradient_of == {"dx": "x", "dw": "w"}
    assert torch.equal(problem.cotangents["y"], names["dy"])
    x, w = (names[name].double().requires_grad_() for name in ("x", "w"))
    y = torch.nn.functional.rms_norm(x, (8,), w, eps=1e-6)
    dx, dw = torch.autograd.grad(y, (x, w), names["dy"].double())
    found = problem.reference()
    for name, expected in (("y", y.detach()), ("dx", dx), ("dw", dw)):
        torch.testing.assert_close(found[name], expected, rtol=1e-12, atol=1e-12)
        assert found[name].dtype == torch.float64
        assert problem.outputs[name].shape == expected.shape


def test_lowp_is_the_reference_in_the_inputs_dtype():
    problem = make()
    low, exact = problem.lowp(), problem.reference()
    for name in ("y", "dx", "dw"):
        assert low[name].dtype == torch.float16
        error = (low[name].double() - exact[name]).abs().max()
        assert 0 < error < 0.02


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_reference_that_casts_to_float32_is_computed_in_float64(dtype):
    # Where the mean is near the element, its rounding in float32 is as large as a kernel's.
    problem = make(one_input("float32_layer_norm"), VALUES | {"dtype": dtype, "cols": 63})
    x = problem.names["x"].double().requires_grad_()
    y = torch.nn.functional.layer_norm(x, (63,))
    (dx,) = torch.autograd.grad(y, x, problem.names["dy"].double())
    torch.testing.assert_close(problem.reference()["y"], y.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(problem.reference()["dx"], dx, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reference", ["cut_bits", "times_float32", "rounded_to_float8"])
def test_a_reference_that_needs_its_float32_keeps_it(reference):
    problem = make(one_input(reference, grad=False), VALUES | {"dtype": "float32"})
    expected = getattr(declared_references, reference)(problem.names["x"])
    assert torch.equal(problem.reference()["y"], expected.double())


@pytest.mark.parametrize("reference", ["float64_layer_norm", "times_float64"])
def test_the_precision_of_a_kernel_is_not_that_of_a_cast_to_float64(reference):
    problem = make(one_input(reference, grad=False), VALUES | {"dtype": "float32", "cols": 63})
    error = (problem.lowp()["y"].double() - problem.reference()["y"]).abs().max()
    assert 1e-8 < error < 1e-5


def test_whole_numbers_may_be_rounded_as_float32_rounds_them():
    """With 64 columns, some are halfway between two: -63.5 in float32, and more in float64."""
    declared = one_input("quantized_in_float64", grad=False)
    differ = 0
    for seed in range(40):
        given = VALUES | {"dtype": "bfloat16", "rows": 8, "cols": 64}
        problem = make(declared, given, seed=seed)
        x = problem.inputs["x"].float()
        y = (x / (x.abs().amax(-1, keepdim=True) / 127)).round().to(torch.int8)
        bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
        differ += not torch.equal(y.double(), bounds.reference["y"].double())
        assert not deviations({"y": y}, bounds)
    assert differ


def test_a_reference_that_needs_its_float64_keeps_it():
    problem = make(one_input("float64_kept_as_bits"), VALUES | {"dtype": "float32"})
    assert torch.equal(problem.lowp()["y"], problem.inputs["x"])


@pytest.mark.parametrize("name", ["row_sums", "row_means", "running_sums"])
@pytest.mark.parametrize("values", ["normal", "constant_rows", "ramp", "opposed", "large"])
def test_sums_of_one_thread_are_right_and_those_of_fewer_bits_are_not(name, values):
    """Thousands of terms, each added to the sum of those before it."""
    for seed in range(3):
        given = VALUES | {"dtype": "float32", "values": values, "rows": 40, "cols": 4096}
        problem = make(one_input(name, grad=False), given, seed=seed)
        x, bounds = problem.inputs["x"], ReferenceBounds(problem, Tolerance(), "interpreter")

        def wrong(total, *, name=name, bounds=bounds):
            y = total if name == "running_sums" else total[:, -1:]
            y = y / 4096 if name == "row_means" else y.reshape(bounds.reference["y"].shape)
            return deviations({"y": y}, bounds)

        assert not wrong(torch.from_numpy(np.add.accumulate(x.numpy(), axis=1)))
        kept = torch.zeros(40)
        total = torch.empty_like(x)
        for column in range(4096):
            kept = (kept + x[:, column]).half().float()
            total[:, column] = kept
        assert wrong(total)


def test_a_reference_that_changes_its_arguments_gets_copies():
    inputs = {"x": NORM["inputs"]["x"], "mean": {"shape": ["cols"], "dtype": "$dtype"}}
    declared = {"inputs": inputs, "outputs": ["y"]}
    problem = make(declared | {"reference": "declared_references:moving_average"})
    before = problem.inputs["mean"].clone()
    low = problem.lowp()["y"]
    assert torch.equal(problem.inputs["mean"], before)
    torch.testing.assert_close(low.double(), problem.reference()["y"], rtol=1e-2, atol=1e-2)


def test_axes_reach_the_reference_and_the_entry():
    values = VALUES | {"eps": 0.5}
    problem = make(values=values)
    assert problem.names["eps"] == 0.5
    assert not torch.allclose(problem.reference()["y"], make().reference()["y"])


def test_outputs_can_be_integers():
    problem = make(one_input("best") | {"outputs": ["top", "place"]})
    assert problem.outputs["top"].dtype == torch.float16
    assert problem.outputs["place"].dtype == torch.int64
    assert problem.outputs["place"].roundoff == 0
    assert list(problem.cotangents) == ["top"]
    assert problem.reference()["dx"].shape == (3, 8)


def test_integer_inputs_keep_their_dtype():
    inputs = one_input("picks")["inputs"] | {"index": {"shape": [5], "dtype": "int32"}}
    problem = make(one_input("picks") | {"inputs": inputs})
    assert problem.inputs["index"].dtype == torch.int32
    assert problem.outputs["y"].shape == (5, 8)


def test_lowp_falls_back_to_float32():
    problem = make(one_input("half_only_in_wide"))
    assert torch.equal(problem.lowp()["y"], (problem.inputs["x"].float() * 3).half())


def test_fill_selects_the_distribution_of_an_input():
    problem = make(one_input("rms_norm", fill="constant_rows") | {
        "inputs": {
            "x": {"shape": ["rows", "cols"], "dtype": "$dtype", "fill": "constant_rows"},
            "w": {"shape": ["cols"], "dtype": "float32", "fill": "one_hot"},
        },
    })  # fmt: skip
    x, w = problem.inputs["x"], problem.inputs["w"]
    assert (x == x[:, :1]).all()
    assert w.sum() == 1
    assert w.dtype == torch.float32
    assert problem.gradient_of == {}


def test_factory_has_only_the_gradients_that_it_returns():
    forward = make(factory="a:b", call=["x", "w"])
    assert set(forward.outputs) == {"y"}
    assert forward.names["dtype"] == "float16"


def test_repeat_generates_other_inputs_then_the_first():
    problem = make()
    (relation,) = problem.relations("repeat")
    other, again = relation.problems
    assert relation.judge == (0,)
    assert not torch.equal(other.inputs["x"], problem.inputs["x"])
    assert not torch.equal(other.reference()["y"], problem.reference()["y"])
    assert torch.equal(again.inputs["x"], problem.inputs["x"])
    assert not list(problem.relations("isolation"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reference": "declared_references:rms_nrom"}, "did you mean 'rms_norm'?"),
        ({"reference": "no_such_module:f"}, "no module 'no_such_module'; looked in"),
        ({"reference": "declared_references:number"}, "is not a function"),
        ({"outputs": ["y", "z"]}, "returned 1 tensors; outputs are y, z"),
        (one_input("wants_more"), "parameter 'gain' is neither an input nor an axis"),
        (
            {"outputs": {"y": {"shape": ["cols", "rows"]}}},
            "declared [8, 3]; the reference returned [3, 8]",
        ),
        ({"inputs": {"v": {"shape": ["rows"], "dtype": "float16"}}}, "has no parameter 'v'"),
        (
            {"inputs": {"x": {"shape": ["rows - 4", 8], "dtype": "float16"}}},
            "'rows - 4' is -1; a size is",
        ),
    ],
)
def test_invalid_declarations_are_spec_errors(change, words):
    with pytest.raises(SpecError) as caught:
        make(NORM | change)
    assert words in str(caught.value)


def test_compile_key_follows_axes_or_compile_arguments():
    entry = make_spec(NORM, axes={"rows": [1], "cols": [1], "dtype": ["float16"]})
    key = family_for(entry).compile_key
    assert key(entry, VALUES) == key(entry, VALUES | {"values": "ramp"})
    assert key(entry, VALUES) != key(entry, VALUES | {"rows": 4})
    factory = make_spec(
        NORM, factory="a:b", call=["x"], factory_args={"N": "cols", "dtype": "dtype"}
    )
    key = family_for(factory).compile_key
    assert key(factory, VALUES) == key(factory, VALUES | {"rows": 4})
    assert key(factory, VALUES) != key(factory, VALUES | {"dtype": "bfloat16"})


def test_bounds_of_inputs_can_depend_on_axes():
    problem = make(
        {
            "inputs": {
                "x": {"shape": [400], "dtype": "int64", "between": [-1, "rows - 1"]},
                "w": {"shape": [400], "dtype": "float32", "between": [0, 1]},
                "s": {"shape": [400], "dtype": "float16", "between": [0.25, "rows / 2"]},
            },
            "outputs": {"y": {"shape": [400], "dtype": "float32"}},
        },
        relations=["finite"],
    )
    x, w, s = (problem.names[name] for name in "xws")
    assert 0.25 <= s.min() < 0.4
    assert 1.3 < s.max() <= 1.5
    assert set(x.tolist()) == {-1, 0, 1, 2}
    assert 0 <= w.min() < 0.1
    assert 0.9 < w.max() <= 1


def test_integers_have_their_least_and_largest_value_more_often():
    problem = {
        "inputs": {"x": {"shape": [800], "dtype": "int64", "between": [-1, 1000]}},
        "outputs": {"y": {"shape": [800], "dtype": "float32"}},
    }
    found = make(problem, relations=["finite"]).names["x"]
    assert 50 < int((found == -1).sum()) < 150
    assert 50 < int((found == 1000).sum()) < 150
    assert 20 < int((found == 0).sum()) < 80
    assert 20 < int((found == 999).sum()) < 80
    assert len(found.unique()) > 300


@pytest.mark.parametrize(("reference", "share"), [("torch:mul", 1 / 16), ("torch:div", 0)])
def test_numbers_have_the_ends_of_their_range_unless_results_are_infinite_then(reference, share):
    problem = {
        "inputs": {
            "x": {"shape": [800], "dtype": "float32", "fill": "normal"},
            "w": {"shape": [800], "dtype": "float16", "between": [0, 1]},
        },
        "outputs": ["y"],
        "reference": {"function": reference, "call": ["x", "w"]},
    }
    found = make(problem).names["w"]
    for end in (0, 1):
        assert share / 2 <= float((found == end).double().mean()) <= share * 3 / 2 + 0.01


@pytest.mark.parametrize("least", [0, -1])
def test_distinct_numbers_occur_once_in_a_row_but_the_least_below_0(least):
    x = {"shape": [100, 6], "dtype": "int32", "between": [least, 7], "distinct": True}
    outputs = {"y": {"shape": [100, 6], "dtype": "float32"}}
    made = make({"inputs": {"x": x}, "outputs": outputs}, relations=["finite"]).names["x"]
    rows = [[each for each in row if each >= 0] for row in made.tolist()]
    assert all(len({*row}) == len(row) for row in rows)
    assert {*made.flatten().tolist()} == {*range(least, 8)}
    assert len({*map(tuple, rows)}) > 90
    many = {"x": {**x, "shape": [1000, 1], "between": [least, 9]}}
    made = make({"inputs": many, "outputs": outputs}, relations=["finite"]).names["x"]
    assert all(int((made == end).sum()) > 130 for end in (0, 9))


def test_some_rows_of_integers_with_equal_ranges_agree():
    few = {"dtype": "int32", "between": [0, 99]}
    problem = {
        "inputs": {
            "draft": {"shape": [400, 4], **few},
            "target": {"shape": [400, 5], **few},
            "other": {"shape": [400, 4], **few, "between": [0, 98]},
        },
        "outputs": {"y": {"shape": [400], "dtype": "float32"}},
    }
    names = make(problem, relations=["finite"]).names
    draft, target, other = (names[name] for name in problem["inputs"])
    assert 50 < int((draft == target[:, :4]).all(1).sum()) < 150
    assert int((draft == other).all(1).sum()) == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"between": [0, 2], "distinct": True},
            "a row of 4 has no 4 distinct numbers from 0 to 2",
        ),
        ({"between": [3, "rows - 1"]}, "the lower bound 3 exceeds the upper bound 2"),
        ({"between": [0, "rows / 2"]}, r"'rows / 2' is 1.5; it must be an integer"),
        ({"between": [0.5, 2]}, r"'0.5' is 0.5; it must be an integer"),
    ],
)
def test_invalid_bounds_are_located_errors(more, words):
    inputs = {"x": {"shape": [4], "dtype": "int64", **more}}
    outputs = {"y": {"shape": [4], "dtype": "float32"}}
    with pytest.raises(SpecError, match=words):
        make({"inputs": inputs, "outputs": outputs}, relations=["finite"])


def test_gradients_that_two_calls_add_up_were_each_rounded():
    """The sum of two large gradients that cancel is off by the roundoff of both."""
    spec = load_spec(Path(__file__).parents[2] / "specs" / "rms_norm.yaml")
    values = {"dtype": "float16", "rows": 33, "cols": 40, "eps": 0.1, "values": "halves"}
    family = family_for(spec)
    problem = family.problem(spec, values, seed=1, device=CPU)
    problem = with_user_relations(spec, family, problem, 1, {})
    (split,) = (each for each in problem.relations("relations") if each.name == "rows_split")
    results = [each.lowp() for each in split.problems]
    sizes = split.rounded(results)
    assert set(sizes) == {"dw"}, "rows of other results are of one call"
    total = split.right(results)["dw"].double()
    torch.testing.assert_close(sizes["dw"], sum(each["dw"].double().abs() for each in results))
    assert sizes["dw"].mean() > 3 * total.abs().mean()


def test_an_input_may_have_the_name_of_the_distribution():
    inputs = {"values": {"shape": ["rows", "cols"], "dtype": "$dtype"}}
    reference = {"function": "torch:mul", "call": ["values", 2]}
    declared = {"inputs": inputs, "outputs": ["y"], "reference": reference}
    problem = make(declared, {"rows": 3, "cols": 8, "dtype": "float16"})
    assert problem.names["values"] is problem.inputs["values"]
    assert problem.distribution in DISTRIBUTIONS


MEANS = ["mean", "mean_with_variance", "mean_of_a_batch_norm", "mean_of_a_layer_norm"]


@pytest.mark.parametrize("reference", MEANS)
def test_a_mean_of_terms_that_cancel_may_be_added_up_in_any_order(reference):
    values = {"rows": 2, "cols": 64, "dtype": "float32", "values": "ramp"}
    declared = make(one_input(reference, grad=False), values)
    bounds = ReferenceBounds(declared, Tolerance(), "interpreter")
    x, total = declared.inputs["x"], torch.zeros(1)
    for column in (*range(0, 64, 2), *range(63, 0, -2)):
        total = total + x[:, column].sum()
    mean = total / x.numel() - 2.0**-25
    assert not deviations({"y": mean}, bounds)
    assert deviations({"y": mean + 1e-4}, bounds)


def test_a_norm_with_running_statistics_computes_no_mean():
    values = {"rows": 2, "cols": 8, "dtype": "float32"}
    declared = make(one_input("batch_norm_with_running_statistics", grad=False), values)
    bounds = ReferenceBounds(declared, Tolerance(), "interpreter")
    y = (declared.inputs["x"] - 1) * (1 + 1e-5) ** -0.5
    assert not deviations({"y": y}, bounds)
    assert deviations({"y": y + 1e-4}, bounds)
