"""The axis `storage` changes the memory layout of inputs and nothing else."""

import pytest
import torch
from declared_references import rms_norm
from problem_cases import CPU, dense, make_problem, make_spec, packed

from tlmatrix.check.guards import ALIGNMENT, guarded
from tlmatrix.problem import family_for
from tlmatrix.problem.lint import lint_optional_axes
from tlmatrix.problem.relations.calls import with_other_layouts
from tlmatrix.spec.model.fields import STORAGES

NORM = {
    "inputs": {
        "x": {"shape": ["rows", 8], "dtype": "$dtype", "grad": True},
        "w": {"shape": [8], "dtype": "$dtype", "grad": True},
    },
    "outputs": ["y"],
    "reference": "declared_references:rms_norm",
}


def gemm(**values):
    axes = {"dtype": "float16", "m": 5, "n": 8, "k": 16, **values}
    spec = make_spec("gemm", axes={axis: [value] for axis, value in axes.items()})
    return family_for(spec).problem(spec, axes, seed=1, device=CPU)


PROBLEMS = {
    "packed attention": lambda **axes: make_problem(packed([3, 0, 5], groups=2, **axes)),
    "dense attention": lambda **axes: make_problem(dense(4, 7, batch=2, **axes)),
    "padded attention": lambda **axes: make_problem(
        packed([3, 0, 5], layout="padded", padding="holes", **axes)
    ),
    "gemm": gemm,
    "gemm with float8": lambda **axes: gemm(dtype="float8_e4m3fn", out_dtype="float32", **axes),
    "gemm of integers": lambda **axes: gemm(dtype="int8", out_dtype="int32", **axes),
}


def same(left, right):
    """Whether values are equal, NaN (in padding) to NaN."""
    return torch.equal(*(each.detach().double().nan_to_num(nan=-1e9) for each in (left, right)))


@pytest.mark.parametrize("storage", [name for name in STORAGES if name != "expanded"])
@pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
def test_storage_keeps_values_of_inputs_and_references(make, storage):
    usual, moved = make(values="normal"), make(values="normal", storage=storage)
    assert moved.inputs.keys() == usual.inputs.keys()
    for name, tensor in usual.inputs.items():
        assert tensor.is_contiguous()
        assert moved.inputs[name].dtype == tensor.dtype
        assert same(moved.inputs[name], tensor)
        assert moved.names[name] is moved.inputs[name]
    for name, tensor in usual.reference().items():
        assert same(moved.reference()[name], tensor)


def test_gradients_of_results_have_each_layout_of_autograd_in_the_first_cases():
    problem, spec = PROBLEMS["dense attention"](values="normal"), make_spec()

    def alone(number):
        case = with_other_layouts(spec, problem, 3, number)
        found = (each for each in case.relations("relations") if each.name == "other_layouts")
        layouts = (each.layouts["do"] for each in found if each.layouts.keys() == {"do"})
        return [each for each in layouts if each != "offset"]

    assert list(map(alone, range(3))) == [["strided"], ["transposed"], ["aligned"]]
    assert alone(None) == []


def test_storage_sets_strides_and_offsets():
    def at(storage):
        return make_problem(dense(4, 7, batch=2, storage=storage)).inputs

    q = at("offset")["q"]
    assert q.is_contiguous()
    assert q.data_ptr() % 16 == 2
    q = at("sliced")["q"]
    assert q.stride() == (4 * 11, 11, 11, 1)
    assert q.storage_offset() == 1
    q = at("transposed")["q"]
    assert q.stride() == (1, 2, 8, 8)
    q = at("ones")["q"]
    assert q.shape[2] == 1
    assert q.stride() == (32, 8, 3, 1)
    assert q.is_contiguous()


def test_only_cotangents_are_expanded_also_in_the_reference():
    sizes = {"batch": 2, "groups": 2}
    problem = make_problem(dense(4, 7, storage="expanded", **sizes))
    assert problem.inputs["q"].is_contiguous()
    do = problem.cotangents["out"]
    assert do is problem.inputs["do"]
    assert set(do.stride()) == {0}
    assert bool((do == 1).all())
    assert not same(problem.reference()["dq"], make_problem(dense(4, 7, **sizes)).reference()["dq"])


def test_declared_problem_supports_storage():
    axes = {"dtype": ["float32"], "rows": [4]}
    spec = make_spec(NORM, entry="declared_references:rms_norm", axes=axes)
    values = {"dtype": "float32", "rows": 4}

    def problem(storage):
        return family_for(spec).problem(spec, {**values, "storage": storage}, seed=1, device=CPU)

    moved = problem("transposed")
    assert moved.inputs["x"].stride() == (1, 4)
    assert same(moved.inputs["x"], problem(None).inputs["x"])
    expanded = problem("expanded")
    assert set(expanded.cotangents["y"].stride()) == {0}
    x = expanded.inputs["x"].double().requires_grad_()
    (dx,) = torch.autograd.grad(rms_norm(x, expanded.inputs["w"].double()).sum(), x)
    assert torch.allclose(expanded.reference()["dx"], dx)


def test_storage_applies_to_problems_of_relations():
    problem = make_problem(packed([3, 4], storage="sliced"))
    (relation, *_) = problem.relations("isolation")
    assert relation.problems[0].inputs["k"].storage_offset() == 1


def test_kv_cache_stays_contiguous():
    values = packed(1, [3, 4], layout="cache", storage="sliced")
    problem = make_problem({**values, "seqlens": {"q": 1, "k": [3, 4]}})
    assert problem.inputs["k_cache"].is_contiguous()
    assert not problem.inputs["q"].is_contiguous()


@pytest.mark.parametrize("storage", STORAGES)
def test_guards_keep_strides_and_offsets(storage):
    problem = make_problem(dense(4, 7, batch=2, storage=storage))
    with guarded(problem) as (inside, guards):
        pass
    assert guards.findings({}) == []
    for name, tensor in problem.inputs.items():
        moved = inside.inputs[name]
        assert moved.stride() == tensor.stride()
        offset = tensor.storage_offset() * tensor.element_size()
        assert moved.data_ptr() % ALIGNMENT == offset
        assert same(moved, tensor)


def test_guards_detect_writes_around_elements_of_an_input():
    for place, told in ((0, -1), (9, 8)):
        problem = make_problem(dense(4, 7, storage="sliced"))
        with guarded(problem) as (inside, guards):
            memory = inside.inputs["q"].as_strided((40,), (1,), 0)
            memory[place] = 0.5
        (finding,) = guards.findings({})
        assert (finding.tensor, finding.index) == ("q", {"offset": told})
        assert finding.got == 0.5
        assert finding.expected == 32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"extra_cases": [{"storage": "slized"}]},
            "storage: unknown storage 'slized'; did you mean",
        ),
        ({"regressions": [{"values": "odd"}]}, "values: unknown distribution 'odd'"),
        ({"regressions": [{"max_seqlen_q": -1}]}, "max_seqlen_q: -1 is not none or an integer"),
    ],
)
def test_invalid_optional_axis_of_a_case_is_an_error(fields, message):
    axes = {axis: [value] for axis, value in packed([3]).items()}
    spec = make_spec(axes=axes, **fields)
    (issue,) = family_for(spec).lint(spec)
    assert issue.message.startswith(message)


@pytest.mark.parametrize(
    ("problem", "axes", "fields", "message"),
    [
        (
            "gemm",
            {"dtype": ["float16"], "m": [1], "n": [8], "k": [8]},
            {"extra_cases": [{"max_seqlen_q": 3}]},
            "neither the spec nor its problem has the axis 'max_seqlen_q'",
        ),
        (
            "gemm",
            {"dtype": ["float16"], "m": [1], "n": [8], "k": [8]},
            {"fuzz": {"storage": ["sliced", "expanded"]}},
            "storage 'expanded' has no effect: the problem has no cotangents",
        ),
        (
            "attention",
            {axis: [value] for axis, value in packed([3]).items()},
            {"fuzz": {"storage": ["expanded"]}, "checks": ["numeric"]},
            "storage 'expanded' has no effect: it needs the check 'gradients'",
        ),
        (
            "declared_references:Bare",
            {"rows": [1]},
            {"fuzz": {"storage": ["sliced"]}, "regressions": [{"rows": 1}]},
            "storage 'sliced' has no effect: the problem has no axis",
        ),
    ],
)
def test_unread_optional_axes_are_errors(problem, axes, fields, message):
    spec = make_spec(problem, axes=axes, **fields)
    family = object() if ":" in problem else family_for(spec)
    (issue,) = lint_optional_axes(spec, family)
    assert issue.message.startswith(message)
