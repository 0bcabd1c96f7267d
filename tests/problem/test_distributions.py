"""Distributions of inputs: deterministic, in range, and as described."""

from pathlib import Path

import pytest
import torch
from problem_cases import make_problem, packed

from tlmatrix.check.numeric import compare, deviations
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem import family_for
from tlmatrix.problem.distributions import (
    DISTRIBUTIONS,
    SPECIAL,
    choose_distribution,
    draw,
    generator,
    poison_scale,
)
from tlmatrix.spec import load_spec
from tlmatrix.spec.model.spec import Tolerance

GEMM = {"m": 40, "n": 48, "k": 300, "transpose_b": True}


def problem_of(family, values, seed=3):
    return make_problem(values, problem=family, seed=seed)


def drawn(name, shape=(64, 2, 32), dtype=torch.float16, **more):
    return draw(name, generator(3), shape, dtype, **more).float()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_reproducible_and_finite_in_every_shape(name, dtype):
    assert torch.equal(drawn(name, dtype=dtype), drawn(name, dtype=dtype))
    assert drawn(name, dtype=dtype).isfinite().all()
    for shape in ((0, 2, 4), (3, 0, 4), (3, 4, 0), (1,), (5, 1)):
        assert draw(name, generator(0), shape, dtype).shape == shape
    for shape in ((7, 4), (3, 2, 32)):
        assert all(draw(name, generator(0), shape, dtype, index=i).is_contiguous() for i in (0, 1))


def test_one_hot_rows_hold_a_single_one():
    tensor = drawn("one_hot")
    assert (tensor.sum(-1) == 1).all()
    assert ((tensor == 0) | (tensor == 1)).all()
    assert len(tensor.argmax(-1).unique()) > 10


def test_ramp_rows_all_differ():
    rows = drawn("ramp").flatten(0, 1)
    assert (rows[1:, 0] > rows[:-1, 0]).all()
    assert (rows[:, 1:] >= rows[:, :-1]).all()
    assert rows[0, -1] > rows[0, 0]


def test_constant_rows_are_constant_and_differ():
    rows = drawn("constant_rows").flatten(0, 1)
    assert (rows == rows[:, :1]).all()
    assert len(rows[:, 0].unique()) > 100


def test_outlier_rows_are_few_and_large():
    large = drawn("outlier_rows").flatten(0, 1).std(-1) > 8
    assert 2 <= large.sum() <= 20


def test_zero_rows_are_the_first_of_every_four_and_small_ones_the_second():
    rows = drawn("zero_rows").flatten(0, 1)
    assert ((rows == 0).all(-1) == (torch.arange(len(rows)) % 4 == 0)).all()
    small = rows.abs().amax(-1) < 0.01
    assert (small == (torch.arange(len(rows)) % 4 < 2)).all()
    assert (drawn("zero_rows", shape=(8,)) != 0).all()


def test_rising_rows_have_their_maximum_in_the_last_tile():
    rows = drawn("rising", shape=(64, 257))
    tiles = rows[:, :256].unflatten(-1, (4, 64)).amax(-1)
    assert (tiles.diff(dim=-1) > 0.5).all()
    assert 2.7 < rows.amax() < 3.5


def test_large_is_large_and_cotangents_stay_small():
    assert 7 < drawn("large").std() < 9
    assert 15 < drawn("large", dtype=torch.bfloat16).std() < 17
    assert drawn("large", cotangent=True).std() < 1.1


def test_opposed_inputs_make_every_score_negative():
    problem = make_problem(packed([20, 7], values="opposed", head_dim=64))
    scores = torch.einsum("qhd,khd->hqk", problem.inputs["q"].float(), problem.inputs["k"].float())
    assert (scores < -5).all()


@pytest.mark.parametrize("head_dim", [32, 64, 256])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_shifted_inputs_make_scores_of_about_minus_200(head_dim, scale):
    values = packed([20, 70], values="shifted", head_dim=head_dim, scale=scale)
    problem = make_problem(values)
    scores = torch.einsum("qhd,khd->hqk", problem.inputs["q"].float(), problem.inputs["k"].float())
    scores *= head_dim**-0.5 if scale is None else scale
    assert -260 < scores.min() < scores.max() < -150
    assert scores.std(-1).mean() < 4


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("layout", ["thd", "bhsd"])
def test_halves_give_parts_of_out_and_dq_that_cancel(layout, window):
    more = {"head_dim": 64, "values": "halves", "causal": window is not None, "window": window}
    sizes = {"seqlens": {"q": [200], "k": "same"}}
    if layout == "bhsd":
        sizes = {"layout": layout, "batch": 1, "seqlen_q": 200}
    base = {"dtype": "float16", "kv_heads": 1, "groups": 1}
    problem = make_problem({**base, **sizes, **more})
    q, k, v, do = (problem.inputs[name].double().reshape(200, 64) for name in ("q", "k", "v", "do"))
    first = 200 - (window or 200)
    middle = 200 - (window or 200) // 2
    p = torch.softmax(q[-1] @ k[first:].T / 8, 0)
    parts = [p[: middle - first] @ v[first:middle], p[middle - first :] @ v[middle:]]
    assert (parts[0] + parts[1]).norm() < 0.1 * parts[0].norm()
    ds = p * (v[first:] @ do[-1] - (parts[0] + parts[1]) @ do[-1])
    parts = [ds[: middle - first] @ k[first:middle], ds[middle - first :] @ k[middle:]]
    assert (parts[0] + parts[1]).norm() < 0.2 * parts[0].norm()


def test_distribution_is_chosen_by_axis_or_seed():
    assert choose_distribution("ramp", 1) == "ramp"
    picked = [choose_distribution(None, seed) for seed in range(400)]
    assert 150 < picked.count("normal") < 250
    named = {"zero_rows", "rising", "cancelling", "halves", "shifted"}
    assert set(picked) == set(DISTRIBUTIONS) - {*named, *SPECIAL}
    rarely = [choose_distribution(None, seed, SPECIAL) for seed in range(400)]
    assert set(rarely) == set(DISTRIBUTIONS) - named
    assert 12 < sum(name in SPECIAL for name in rarely) < 40
    # Where the seed picks no special values, the distribution is that of other families.
    assert all(rare in (usual, *SPECIAL) for usual, rare in zip(picked, rarely, strict=True))
    shares = {"halves": 0.15, "shifted": 0.05}
    own = [choose_distribution(None, seed, own=shares) for seed in range(400)]
    assert 35 < own.count("halves") < 85
    assert 8 < own.count("shifted") < 35
    assert all(each in (usual, *shares) for usual, each in zip(picked, own, strict=True))
    with pytest.raises(ValueError, match="did you mean 'normal'"):
        choose_distribution("nromal", 1)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_are_finite_for_all_distributions(name, dtype):
    values = packed(
        [200, 65], [150, 200], groups=4, head_dim=128, causal=True, sink=True, dtype=dtype,
        values=name,
    )  # fmt: skip
    for problem in (make_problem(values, seed=seed) for seed in range(2)):
        low = problem.lowp()
        assert problem.names["values"] == name
        for result in ("out", "dq", "dk", "dv"):
            assert low[result].isfinite().all()
            # The product of two subnormal inputs is 0.
            assert low[result].abs().max() > 0 or name == "subnormal"


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float16", 2.0**5), ("bfloat16", 2.0**40), ("float32", 2.0**40)]
)
def test_poison_scale_keeps_products_finite(dtype, expected):
    assert poison_scale(dtype) == expected


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn"])
def test_inputs_are_subnormal_or_normal(name):
    dtype = getattr(torch, name)
    sizes = [
        draw("subnormal", generator(seed), (64, 32), dtype).double().abs() for seed in range(8)
    ]
    tiny = [size for size in sizes if (size <= torch.finfo(dtype).smallest_normal).all()]
    assert 2 <= len(tiny) <= 6
    assert all((size > 0).double().mean() > 0.8 for size in tiny)
    assert sum(bool(size.std() > 0.5) for size in sizes) == 8 - len(tiny)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_a_large_input_has_few_subnormals_of_float32(name):
    dtype = getattr(torch, name)
    sizes = [draw("subnormal", generator(seed), (999, 64), dtype).abs() for seed in range(8)]
    small = [size <= torch.finfo(dtype).smallest_normal for size in sizes]
    tiny = [each for each in small if each[:256].all()]
    assert 2 <= len(tiny) <= 6
    for each in tiny:
        assert each[256:].all() if name == "float16" else each[256:].double().mean() < 0.1
    assert all(each.double().mean() < 0.1 for each in small if not each[:256].all())


def test_equal_keys_have_equal_scores_and_values_differ():
    problem = make_problem(packed([20, 7], values="equal_rows", head_dim=64))
    q, k, v = (problem.inputs[name].float() for name in "qkv")
    scores = torch.einsum("qhd,khd->hqk", q, k)
    assert (scores == scores[..., :1]).all()
    assert scores.std() > 1
    assert len(v[:, 0, 0].unique()) > 20


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("storage", [None, "expanded"])
def test_extreme_values_of_attention_are_finite_up_to_their_gradients(dtype, storage):
    sizes = {"head_dim": 64, "dtype": dtype, "storage": storage}
    problem = make_problem(packed([200, 65], values="extreme", **sizes), seed=2)
    assert problem.inputs["v"].abs().max() > (2**14 if dtype == "float16" else 2**54)
    for results in (problem.lowp(), problem.reference()):
        assert all(tensor.to(getattr(torch, dtype)).isfinite().all() for tensor in results.values())


@pytest.mark.parametrize("storage", [None, "expanded"])
@pytest.mark.parametrize("lengths", [([200, 65],), ([64], [128]), ([200], [40])])
def test_extreme_gradients_are_finite_and_their_sums_before_the_scale_are_not(lengths, storage):
    values = packed(*lengths, values="extreme", head_dim=64, dtype="float16", storage=storage)
    with_sink = {**values, "sink": True, "sink_dtype": "same"}
    assert make_problem(with_sink, seed=1).reference()["dsink"].half().isfinite().all()
    for seed in (1, 3):
        problem = make_problem(values, seed=seed)
        exact, low = problem.reference(), problem.lowp()
        for name in ("dq", "dk", "dv"):
            assert low[name].isfinite().all()
            assert exact[name].abs().max() <= 2**15
        assert (exact["dk"] * 64**0.5).half().isinf().any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_extreme_products_and_sums_are_finite_in_the_dtype(dtype):
    sums = {"operation": "reduce_scatter", "rows": 8, "cols": 40, "world": 8}
    for family, values in (("gemm", GEMM), ("collective", sums)):
        problem = problem_of(family, {**values, "dtype": dtype, "values": "extreme"})
        (result,) = problem.lowp().values()
        assert result.isfinite().all()
        assert result.abs().max() > (2.0**10 if dtype == "float16" else 2.0**50)


@pytest.mark.parametrize("family", ["attention", "gemm"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_flushed_subnormals_are_within_the_bound_except_those_of_float16(family, dtype):
    """GPUs may flush float32 and bfloat16 below 2**-126, but compute with those of float16."""
    values = GEMM if family == "gemm" else packed([17, 1, 30], head_dim=64)
    smallest = torch.finfo(getattr(torch, dtype)).smallest_normal
    found = set()
    for seed in range(12):
        problem = problem_of(family, {**values, "dtype": dtype, "values": "subnormal"}, seed)
        flushed = {
            name: torch.where(tensor.abs() < smallest, torch.zeros_like(tensor), tensor)
            for name, tensor in problem.inputs.items()
            if tensor.is_floating_point()
        }
        results = problem.with_inputs(flushed).lowp()
        bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
        found |= deviations(results, bounds).keys()
    every = {"c"} if family == "gemm" else {"out", "lse", "dq", "dk", "dv"}
    assert found == (every if dtype == "float16" else set())


def test_integers_have_both_signs():
    signed = draw("normal", generator(1), (500,), torch.int8)
    assert (signed.min(), signed.max()) == (-8, 7)
    assert draw("normal", generator(1), (500,), torch.uint8).max() == 7
    assert draw("normal", generator(1), (50,), torch.bool).dtype == torch.bool


def test_guide_lists_all_distributions():
    guide = (Path(__file__).parents[2] / "docs/guides/own-problems.md").read_text()
    _, _, guide = guide.partition("## What the inputs hold")
    _, *lines = (line for line in guide.splitlines() if line.startswith("| `"))
    assert [line.split("`")[1] for line in lines] == list(DISTRIBUTIONS)


def test_cancelling_halves_have_opposite_signs_in_the_first_input_alone():
    first, second = drawn("cancelling").mean((0, 1)), drawn("cancelling", index=1)
    assert (first[:16] > 0.4).all()
    assert (first[16:] < -0.4).all()
    assert second.mean() > 0.4


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("rounded", ["no", "kept", "added"])
def test_cancelling_parts_of_dv_show_their_precision(layout, rounded):
    values = {
        "dtype": "bfloat16", "layout": layout, "batch": 1, "kv_heads": 1, "groups": 16,
        "head_dim": 32, "head_dim_v": "same", "causal": False, "window": None,
        "backward": "split", "seqlen_q": 128, "seqlen_k": 64, "values": "cancelling",
    }  # fmt: skip
    spec = load_spec(Path(__file__).parents[2] / "specs" / "gqa_dense.yaml")
    problem = family_for(spec).problem(spec, values, seed=3, device=torch.device("cpu"))
    swapped = layout == "bshd"
    q, k, do = (
        each.float().transpose(1, 2) if swapped else each.float()
        for each in (problem.inputs["q"], problem.inputs["k"], problem.cotangents["out"])
    )
    weights = torch.softmax(q @ k.mT / 32**0.5, -1).bfloat16().float()
    parts = (weights.mT @ do).unbind(1)
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + (part.bfloat16() if rounded == "kept" else part)
        total = total.bfloat16().float() if rounded == "added" else total
    dv = total.bfloat16()[:, :, None] if swapped else total.bfloat16()[:, None]
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    found = compare(dv, bounds.reference["dv"], bounds.error_bound("dv"))
    assert (found is None) == (rounded == "no")
