"""Attention problems: names, shapes, dims, cost and compile keys."""

import itertools

import pytest
import torch
from problem_cases import dense, make_problem, make_spec, packed, visible

from tlmatrix.check.tolerance import ReferenceBounds, error_bound
from tlmatrix.problem import family_for
from tlmatrix.problem.attention.axes import AxisError, Setting
from tlmatrix.spec.model.spec import Tolerance


def test_rows_of_dk_share_the_rounding_errors_of_the_queries_of_their_sequence():
    values = packed([1, 0, 4], [3, 2, 5], kv_heads=2, groups=3)
    counts = make_problem(values).outputs["dk"].independent()
    assert counts.expand(10, 2, 8)[:, 1, 3].tolist() == [3, 3, 3, 0, 0, 12, 12, 12, 12, 12]
    dense_ = make_problem(dense(6, 3, batch=2, layout="bhsd")).outputs
    assert int(dense_["dk"].independent()) == 6
    assert dense_["dq"].independent is None


def test_index_is_described_by_sequence_position_and_tile():
    problem = make_problem(packed([3, 0, 70], [5, 6, 9]), tile={"q": 64, "k": "head_dim"})
    rows = problem.outputs["out"].dims[0]
    assert rows.describe(3 + 65) == {"sequence": 2, "position": 65, "position_tile": 1}
    assert problem.outputs["dk"].dims[0].describe(5 + 6 + 8) == {
        "sequence": 2, "position": 8, "position_tile": 1,
    }  # fmt: skip
    assert [dim.name for dim in problem.outputs["lse"].dims] == ["head", "position"]
    assert [dim.name for dim in problem.outputs["dv"].dims] == ["position", "kv_head", "dim"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kv_heads": 2, "groups": 3}, (6, 2, 3)),
        ({"kv_heads": 2}, (2, 2, 1)),
        ({"heads": 6, "kv_heads": 2}, (6, 2, 3)),
        ({"heads": 6, "groups": 3}, (6, 2, 3)),
        ({"heads": 6}, (6, 6, 1)),
        ({"heads": 6, "kv_heads": 2, "groups": 3}, (6, 2, 3)),
    ],
)
def test_any_two_of_heads_kv_heads_and_groups_determine_the_third(given, expected):
    values = {"dtype": "float16", "head_dim": 8, "seqlens": [4], **given}
    setting = Setting.of(values)
    assert (setting.heads, setting.kv_heads, setting.groups) == expected


@pytest.mark.parametrize(
    ("change", "axis", "words"),
    [
        ({"window": 3}, "window", "window is none or causal"),
        ({"heads": 5, "kv_heads": 2}, "heads", "heads 5 is not a multiple of kv_heads 2"),
        ({"heads": 4, "kv_heads": 2, "groups": 3}, "heads", "kv_heads 2 * groups 3"),
        ({"kv_heads": None}, "kv_heads", "none is not an integer >= 1"),
        ({"layout": "bshd"}, "layout", "layout bshd is dense, and seqlens makes packed"),
        ({"batch": 2}, "batch", "the axes batch and seqlens are both given"),
        ({"max_seqlen_k": 3}, "max_seqlen_k", "less than the longest sequence (4)"),
        ({"head_dim": None}, "head_dim", "none is not an integer >= 1"),
        ({"seqlens": {"q": [1, 2], "k": [1]}}, "seqlens", "2 query sequences and 1 key sequences"),
        ({"dtype": "fp16"}, "dtype", "did you mean 'float16'?"),
    ],
)
def test_invalid_values_raise_an_error_with_their_axis(change, axis, words):
    with pytest.raises(AxisError) as caught:
        make_problem({**packed([4]), **change})
    assert caught.value.axis == axis
    assert words in str(caught.value)


@pytest.mark.parametrize("axis", ["groups", "kv_heads", "head_dim", "head_dim_v"])
def test_zero_heads_and_dims_are_valid_for_invalid_argument_tests(axis):
    names = make_problem({**packed([4]), axis: 0}).names
    empty = {"groups": "q", "kv_heads": "k", "head_dim": "q", "head_dim_v": "v"}[axis]
    assert 0 in names[empty].shape
    assert names[axis] == 0


def test_max_seqlen_can_exceed_the_longest_sequence():
    names = make_problem(packed([4, 2], max_seqlen_q=100, max_seqlen_k=None)).names
    assert (names["max_seqlen_q"], names["max_seqlen_k"]) == (100, 4)


def test_scale_none_is_passed_to_entries_and_resolved_for_factories():
    values = packed([4], scale=None)
    assert make_problem(values).names["scale"] is None
    assert make_problem(packed([4])).names["scale"] == 8**-0.5
    factory = {"factory": "a:b", "call": ["q", "k", "v"], "returns": ["out"]}
    assert make_problem(values, **factory).names["scale"] == 8**-0.5


def test_entry_gets_a_torch_dtype_and_factory_its_name():
    assert make_problem(packed([4])).names["dtype"] is torch.float16
    factory = make_problem(packed([4]), factory="a:b", call=["q", "k", "v"], returns=["out"])
    assert factory.names["dtype"] == "float16"


def test_forward_factory_has_no_gradients():
    problem = make_problem(packed([4]), factory="a:b", call=["q", "k", "v"], returns=["out"])
    assert set(problem.outputs) == set(problem.reference()) == {"out", "lse"}
    assert not problem.gradient_of
    assert not problem.cotangents


@pytest.mark.parametrize("values", [packed([4, 3], groups=2), dense(5, layout="bhsd")], ids=str)
def test_backward_factory_gets_saved_forward_results(values):
    problem = make_problem(
        values, factory="a:b", call=["q", "k", "v", "do", "lse", "delta", "dq"],
        returns=["dq", "dk", "dv"],
    )  # fmt: skip
    assert {"dq", "dk", "dv"} <= set(problem.reference())
    assert not problem.gradient_of
    out, do = problem.reference()["out"], problem.inputs["do"].double()
    delta = (out * do).sum(-1)
    delta = delta if values.get("layout") == "bhsd" else delta.transpose(-1, -2)
    assert problem.names["lse"].dtype == problem.names["delta"].dtype == torch.float32
    torch.testing.assert_close(problem.names["delta"].double(), delta, rtol=0.02, atol=0.02)
    torch.testing.assert_close(
        problem.names["lse"].double(), problem.reference()["lse"], rtol=1e-5, atol=1e-5
    )
    assert "dq" not in problem.names


def test_gradients_need_the_check_gradients():
    problem = make_problem(packed([4]), checks=["numeric"])
    assert set(problem.outputs) == {"out", "lse"}


MASKS = [{}, {"causal": True}, {"causal": True, "window": 3}]


@pytest.mark.parametrize(
    "mask", [*MASKS, *({**m, "alignment": "top_left"} for m in MASKS)], ids=str
)
def test_cost_counts_unmasked_pairs(mask):
    for lq, lk in itertools.product([0, 1, 2, 5, 9], repeat=2):
        setting = Setting.of(packed([lq, 3], [lk, 4], **mask))
        pairs = sum(int(visible(*each, **mask).sum()) for each in ((lq, lk), (3, 4)))
        assert setting.visible_pairs == pairs, (lq, lk)
    problem = make_problem(packed([3], [4], groups=2, head_dim_v=16, **mask), checks=["numeric"])
    pairs = int(visible(3, 4, **mask).sum()) * 2
    assert problem.cost().flops == 2 * pairs * (8 + 16)
    assert problem.cost().bytes == 2 * (3 * 2 * 8 + 4 * 8 + 4 * 16 + 3 * 2 * 16) + 4 * 3 * 2
    both = make_problem(packed([3], [4], groups=2, head_dim_v=16, **mask))
    assert both.cost().flops == 2 * pairs * (8 + 16)
    assert both.cost().backward.flops == 2 * pairs * (3 * 8 + 2 * 16)


def test_kv_cache_layouts_allow_only_bottom_right_alignment():
    stored = packed([1, 1], [4, 2], layout="cache", alignment="top_left")
    with pytest.raises(AxisError, match="alignment top_left does not fit the layout cache"):
        make_problem(stored)


def test_compile_key_ignores_data_axes_only():
    spec = make_spec(axes={"any": [1]})
    family = family_for(spec)
    base = packed([4], values="normal", scale=0.5)
    key = family.compile_key(spec, base)
    for same in ({"seqlens": {"q": [9], "k": "same"}}, {"values": "ramp"}, {"scale": 0.7}):
        assert family.compile_key(spec, {**base, **same}) == key
    for other in ({"head_dim": 16}, {"dtype": "bfloat16"}, {"backward": "split"}, {"groups": 2}):
        assert family.compile_key(spec, {**base, **other}) != key


def test_compile_key_of_a_factory_follows_its_compile_arguments():
    spec = make_spec(
        factory="a:b", call=["q"], returns=["out"],
        factory_args={"heads": "kv_heads * groups", "rows": "max_seqlen_q", "tile": 64},
    )  # fmt: skip
    family = family_for(spec)
    key = family.compile_key(spec, packed([4, 2], kv_heads=2, groups=3))
    assert family.compile_key(spec, packed([1, 4], kv_heads=3, groups=2, causal=True)) == key
    assert family.compile_key(spec, packed([5, 2], kv_heads=2, groups=3)) != key
    assert family.compile_key(spec, packed([4], kv_heads=2, groups=3, dtype="bfloat16")) != key


def test_empty_batch_is_valid():
    problem = make_problem(packed([0, 0], [0, 0], sink=True))
    found = problem.reference()
    assert found["out"].shape == (0, 1, 8)
    assert found["dsink"].tolist() == [0.0]
    assert problem.names["max_seqlen_q"] == 0
    assert all(list(problem.relations(kind)) is not None for kind in ("isolation", "relations"))


@pytest.mark.parametrize(
    "values",
    [
        packed([5, 0, 1, 70, 3], [5, 4, 1, 90, 1], groups=2, causal=True),
        packed([1, 64], [1, 64], sink="normal", dtype="bfloat16"),
        dense(33, batch=3, layout="bhsd", causal=True, window=3),
        dense(1, 40, batch=2, layout="bshd", kv_heads=2),
        {**packed([3, 1, 6], layout="padded"), "padding": "left"},
        packed(1, [17, 0, 40, 5], kv_heads=2, groups=2, layout="cache"),
        packed(1, [17, 0, 40, 5], kv_heads=2, layout="paged", page_size=16),
    ],
    ids=lambda values: values.get("layout", "packed"),
)
@pytest.mark.parametrize("distribution", ["normal", "cancelling", "large"])
def test_bounds_of_some_regions_are_no_larger_than_the_own(values, distribution):
    """They are compared first: what they accept, the error bound must accept."""
    problem = make_problem({**values, "values": distribution})
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    pick = torch.Generator().manual_seed(1)
    for name, info in problem.outputs.items():
        if info.of_regions is None:
            assert name == "dsink"
            continue
        reference, low = bounds.reference[name], bounds.lowp[name]
        regions, allowance = bounds.regions(name), bounds.tolerance_of(name)
        for part in (0.0, 0.3, 1.0):
            mask = (torch.rand(regions.shape, generator=pick) < part).numpy()
            lower = error_bound(
                info.of_regions(mask), reference, low, allowance, regions, lower=True
            )
            for each in ("element", "region", "whole"):
                most = getattr(bounds.error_bound(name), each) * (1 + 1e-6)
                assert (getattr(lower, each) <= most).all(), (name, part, each)
        everywhere = info.of_regions(regions.elements.bool().numpy())
        if name != "lse":
            assert torch.allclose(everywhere.magnitude(), info.magnitude(), rtol=1e-6)
