"""Distributions of inputs: deterministic, in range, and as described."""

from pathlib import Path

import pytest
import torch
from problem_cases import make_problem, packed

from tlmatrix.check.numeric import compare
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem import family_for
from tlmatrix.problem.distributions import DISTRIBUTIONS, choose_distribution, draw, generator
from tlmatrix.problem.poison import poison_scale
from tlmatrix.spec import load_spec
from tlmatrix.spec.model.spec import Tolerance


def drawn(name, shape=(64, 2, 32), dtype=torch.float16, **more):
    return draw(name, generator(3), shape, dtype, **more).float()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_values_are_reproducible_and_finite_in_every_shape(name, dtype):
    assert torch.equal(drawn(name, dtype=dtype), drawn(name, dtype=dtype))
    assert drawn(name, dtype=dtype).isfinite().all()
    for shape in ((0, 2, 4), (3, 0, 4), (1,), (5, 1)):
        assert draw(name, generator(0), shape, dtype).shape == shape


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


def test_zero_rows_are_the_first_of_every_four():
    rows = drawn("zero_rows").flatten(0, 1)
    assert ((rows == 0).all(-1) == (torch.arange(len(rows)) % 4 == 0)).all()
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


def test_distribution_is_chosen_by_axis_or_seed():
    assert choose_distribution("ramp", 1) == "ramp"
    picked = [choose_distribution(None, seed) for seed in range(400)]
    assert 150 < picked.count("normal") < 250
    assert set(picked) == set(DISTRIBUTIONS) - {"zero_rows", "rising", "cancelling"}
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
            assert low[result].abs().max() > 0


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float16", 2.0**5), ("bfloat16", 2.0**40), ("float32", 2.0**40)]
)
def test_poison_scale_keeps_products_finite(dtype, expected):
    assert poison_scale(dtype) == expected


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
