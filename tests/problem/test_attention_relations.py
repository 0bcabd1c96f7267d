"""Relations of attention hold for correct results, fail for wrong ones, and respect the spec."""

import pytest
import torch
from problem_cases import dense, make_problem, packed

from spec_results import findings_of

KINDS = ("isolation", "poison", "relations", "repeat")

CASES = [
    packed([5, 1, 9], values="normal"),
    packed([0, 5, 3], [7, 0, 6], kv_heads=2, groups=2, values="normal"),
    packed([9, 2, 5], [3, 11, 5], causal=True, window=20, head_dim_v=5, values="normal"),
    packed([4, 4], kv_heads=2, sink=True, causal=True, values="normal"),
    packed([6, 0, 3], [4, 2, 0], kv_heads=4, sink="mixed", causal=True, values="normal"),
    dense(6, 9, batch=3, kv_heads=2, groups=2, layout="bshd", values="normal"),
    dense(6, 4, batch=2, kv_heads=2, groups=3, layout="bhsd", causal=True, values="normal"),
    dense(5, batch=2, layout="thd", sink=True, values="normal"),
    dense(5, 3, batch=2, groups=4, layout="bhsd", sink="mixed", causal=True, values="normal"),
]
WIDE = {
    "groups": [1, 2, 3], "window": [None, 1, 20], "sink": [None, True, "mixed"],
    "scale": [None, 0.5], "layout": ["bshd", "bhsd", "thd"],
}  # fmt: skip


def problem_of(values, **fields):
    """The problem, with a spec whose axes list values for relations."""
    wide = {axis: listed for axis, listed in WIDE.items() if axis in values}
    axes = {axis: listed for axis, listed in wide.items() if values[axis] in listed}
    return make_problem(values, axes=axes | fields.pop("axes", {}), **fields)


def relations_of(problem, kind=None):
    return {
        relation.name: relation
        for each in ([kind] if kind else KINDS)
        for relation in problem.relations(each)
    }


def sides(relation, problem, run):
    return relation.left(run(problem)), relation.right([run(each) for each in relation.problems])


@pytest.mark.parametrize("values", CASES, ids=str)
def test_relations_hold_for_the_reference(values):
    seen = set()
    more = {"groups": 1, "window": None, "sink": None, "scale": None}
    for seed, axis in ((3, {}), (4, more), (5, more)):
        problem = problem_of({**axis, **values}, seed=seed)
        found = relations_of(problem)
        seen |= set(found)
        for relation in found.values():
            mine, other = sides(relation, problem, lambda p: p.reference())
            assert set(mine) == set(other), relation.name
            for name in mine:
                torch.testing.assert_close(
                    other[name], mine[name], rtol=1e-11, atol=1e-11, check_dtype=False,
                    msg=lambda text, r=relation, n=name: f"{r.name} {n}: {text}",
                )  # fmt: skip
    assert {"repeat", "batch_permuted", "batch_split", "batch_extended"} <= seen


@pytest.mark.parametrize("values", CASES, ids=str)
def test_exact_relations_keep_every_bit_at_low_precision(values):
    problem = problem_of(values)
    exact = [relation for relation in relations_of(problem).values() if relation.exact]
    assert {relation.kind for relation in exact} == {"isolation", "poison", "repeat"}
    for relation in exact:
        mine, other = sides(relation, problem, lambda p: p.lowp())
        assert mine
        for name in mine:
            assert torch.equal(mine[name], other[name]), (relation.name, name)


@pytest.mark.parametrize("values", CASES, ids=str)
def test_poisoned_results_are_finite(values):
    (relation,) = relations_of(problem_of(values), "poison").values()
    for dtype in ("float16", "bfloat16", "float32"):
        problem = problem_of({**values, "dtype": dtype, "head_dim": 256})
        (relation,) = relations_of(problem, "poison").values()
        (poisoned,) = relation.problems
        assert poisoned.inputs["v"].abs().max() > 32
        drawn = (tensor for name, tensor in poisoned.inputs.items() if name != "sink")
        assert all(tensor.isfinite().all() for tensor in drawn)
        low = poisoned.lowp()
        assert all(low[name].isfinite().all() for name in ("out", "dv"))


def leaky(problem):
    """A kernel that adds a thousandth of the last row of v in memory to every row."""
    found = dict(problem.reference())
    found["out"] = found["out"] + problem.inputs["v"].double().flatten()[-1] / 1000
    return found


def test_a_leak_between_sequences_breaks_isolation_and_poison():
    broken = set()
    for seed in range(8):
        problem = make_problem(packed([5, 3], values="normal"), seed=seed)
        for name, relation in relations_of(problem).items():
            mine, other = sides(relation, problem, leaky)
            if relation.exact and not torch.equal(mine["out"], other["out"]):
                broken.add(name)
    assert broken == {"isolation_sequence", "poison_neighbours"}


def test_a_leak_between_heads_breaks_isolation_of_heads():
    problem = make_problem(packed([4], kv_heads=2, groups=2, values="normal"))
    relation = relations_of(problem)["isolation_head"]

    def mixing(p):
        out = p.reference()["out"]
        return {"out": out + out.mean(1, keepdim=True)}

    mine, other = sides(relation, problem, mixing)
    assert mine["out"].shape == (4, 2, 8)
    assert not torch.equal(mine["out"], other["out"])


def test_dependence_on_key_order_breaks_keys_permuted():
    def unfair(p):
        return {"lse": p.reference()["lse"] + p.inputs["k"][0, 0, 0]}

    broken = 0
    for seed in range(20):
        problem = make_problem(packed([6, 4], values="normal"), seed=seed)
        mine, other = sides(relations_of(problem, "relations")["keys_permuted"], problem, unfair)
        broken += not torch.allclose(mine["lse"], other["lse"])
    assert broken > 3


def test_repeat_changes_data_and_scale_and_checks_the_other_run():
    problem = problem_of(packed([4], scale=0.5))
    (relation,) = relations_of(problem, "repeat").values()
    other, again = relation.problems
    assert relation.judge == (0,)
    assert other.names["scale"] == 8**-0.5
    assert other.values["scale"] != problem.values["scale"]
    assert not torch.equal(other.inputs["q"], problem.inputs["q"])
    assert torch.equal(again.inputs["q"], problem.inputs["q"])
    assert again.names["scale"] == 0.5


def test_repeat_keeps_the_scale_without_an_axis_scale():
    problem = problem_of(packed([4]))
    (relation,) = relations_of(problem, "repeat").values()
    assert relation.problems[0].names["scale"] == problem.names["scale"]


def test_groups_as_repeated_heads_needs_groups_of_one_in_the_spec():
    values = packed([5], groups=3)
    assert "groups_as_repeated_heads" in relations_of(make_problem(values, axes={"groups": [1, 3]}))
    assert "groups_as_repeated_heads" not in relations_of(make_problem(values))
    relation = relations_of(make_problem(values, axes={"groups": [1, 3]}))[
        "groups_as_repeated_heads"
    ]
    names = relation.problems[0].names
    assert (names["groups"], names["kv_heads"], names["heads"]) == (1, 3, 3)


def test_where_rules_exclude_relations():
    values = packed([5], groups=3, causal=True, window=None)
    axes = {"groups": [1, 3], "window": [None, 5]}
    where = [{"require": "groups > 1 and window is none", "because": "a limit of the kernel"}]
    free = relations_of(make_problem(values, axes=axes))
    bound = relations_of(make_problem(values, axes=axes, constraints=where))
    assert set(free) - set(bound) == {"groups_as_repeated_heads", "window_as_long_as_keys"}


@pytest.mark.parametrize("window", [None, 9, 12])
def test_window_as_long_as_keys_applies_in_both_directions(window):
    problem = problem_of(
        packed([5, 9], causal=True, window=window), axes={"window": [None, window or 9]}
    )
    (other,) = relations_of(problem)["window_as_long_as_keys"].problems
    assert other.names["window"] == (9 if window is None else None)


def test_a_window_that_the_spec_does_not_list_is_not_tried():
    """A kernel may take multiples of its tile alone."""
    values = packed([5, 9], causal=True, window=None)
    windows = lambda *listed: {"window": [None, *listed]}  # noqa: E731
    (other,) = relations_of(problem_of(values, axes=windows(4, 64, 128)))[
        "window_as_long_as_keys"
    ].problems
    assert other.names["window"] == 64
    assert "window_as_long_as_keys" not in relations_of(problem_of(values, axes=windows(4)))


@pytest.mark.parametrize(("alignment", "longest"), [("bottom_right", 5), ("top_left", 9)])
def test_window_with_top_left_alignment_spans_the_queries(alignment, longest):
    values = packed([9, 2], [4, 5], causal=True, window=None, alignment=alignment)
    problem = problem_of(values, axes={"window": [None, longest]})
    (other,) = relations_of(problem)["window_as_long_as_keys"].problems
    assert other.names["window"] == longest
    for name, tensor in problem.reference().items():
        assert torch.equal(other.reference()[name], tensor)


def test_keys_permuted_needs_no_causal_mask():
    assert "keys_permuted" not in relations_of(make_problem(packed([5], causal=True)))
    assert "keys_permuted" in relations_of(make_problem(packed([5])))


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_other_layout_needs_layouts_in_the_spec(layout):
    problem = problem_of(dense(5, 3, batch=2, kv_heads=2, groups=2, layout=layout))
    relation = relations_of(problem)["other_layout"]
    assert relation.problems[0].names["layout"] != layout
    assert relation.problems[0].values["layout"] == relation.problems[0].names["layout"]
    alone = make_problem(dense(5, 3, layout=layout))
    assert "other_layout" not in relations_of(alone)


def test_relation_of_a_factory_updates_names_with_values():
    problem = make_problem(packed([5, 3, 7]))
    for relation in relations_of(problem).values():
        for each in relation.problems:
            lengths = each.values["seqlens"]
            assert each.names["seqlens_q"] == list(lengths["q"])
            assert each.names["batch"] == len(each.names["cu_seqlens_q"]) - 1
            assert each.inputs["q"].shape[0] == each.names["total_q"]


def test_sink_merged_afterwards_gives_the_results_with_a_sink():
    problem = problem_of(packed([5, 3], [2, 4], kv_heads=4, causal=True, sink="mixed"))
    relation = relations_of(problem, "relations")["sink_merged_afterwards"]
    (plain,) = relation.problems
    assert plain.inputs.keys() == problem.inputs.keys() - {"sink"}
    mine, other = sides(relation, problem, lambda p: p.reference())
    shifted = relation.right([{**plain.reference(), "lse": plain.reference()["lse"] + 0.01}])
    for name in ("out", "lse"):
        torch.testing.assert_close(mine[name], other[name], rtol=1e-11, atol=1e-11)
        assert not torch.allclose(mine[name], shifted[name], rtol=1e-4, atol=1e-4)
    alone = {"out": mine["out"]}
    assert relation.left(alone) == relation.right([alone]) == {}


def test_relations_compare_available_results():
    """A forward factory may return only out."""
    problem = problem_of(packed([5, 3], groups=2, kv_heads=2, causal=True, window=None, sink=None))
    for relation in relations_of(problem).values():
        mine, other = sides(relation, problem, lambda p: {"out": p.lowp()["out"]})
        assert set(mine) == set(other) == ({"out"} if mine else set())


CODE = """
import torch


def attention(q, k, v, least=-1e30):
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    m = scores.amax(-1, keepdim=True).clamp_min(least)
    p = (scores - m).exp()
    total = p.sum(-1, keepdim=True)
    return torch.where(total > 0, p @ v.float() / total.clamp_min(1e-30), 0).to(q.dtype)


def attention_from_a_sentinel(q, k, v):
    return attention(q, k, v, -5e4)
"""
DENSE = """
name: dense
problem: attention
entry: attention_relations_code:{entry}
call: [q, k, v]
checks: [numeric, relations]
axes:
  dtype: [{dtype}]
  layout: [bhsd]
  head_dim: [8]
  kv_heads: [1]
  seqlen_q: [3]
  seqlen_k: [1, 2, 5, 9]
  scale: [none]
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_maximum_that_begins_at_a_finite_number_is_found(dtype, code_folder):
    spec = code_folder / "dense.yaml"
    assert findings_of(DENSE.format(entry="attention", dtype=dtype), spec) == []
    text = DENSE.format(entry="attention_from_a_sentinel", dtype=dtype)
    findings = findings_of(text, spec)
    assert {each.title.partition(":")[0] for each in findings} == {"low_scores"}
