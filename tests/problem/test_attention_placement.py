"""Placement of tokens: KV caches and padded tensors, with poison in the places without one."""

from itertools import chain

import pytest
import torch
from problem_cases import CPU, make_problem, make_spec

from spec_results import findings_of
from tlmatrix.problem import family_for
from tlmatrix.problem.attention import relations
from tlmatrix.problem.attention.axes import AxisError

LENGTHS = [17, 0, 40, 5]
PAGED = {"layout": "paged", "page_size": 16}
CACHE = {"layout": "cache"}


def stored(lengths=LENGTHS, **values):
    base = {"dtype": "float16", "kv_heads": 2, "groups": 2, "head_dim": 8, "head_dim_v": 4}
    return {**base, "seqlens": {"q": 1, "k": lengths}, "values": "normal", **values}


def keys_of(problem, name="k"):
    """The keys of each sequence, by definition of the layout."""
    names, found = problem.names, []
    for number, length in enumerate(names["seqlens_k"].tolist()):
        if names["layout"] == "cache":
            found.append(names[f"{name}_cache"][number, :length])
            continue
        size, pool = names["page_size"], names[f"{name}_pages"]
        table = names["block_table"][number].tolist()
        rows = [pool[table[key // size], key % size] for key in range(length)]
        found.append(torch.stack(rows) if rows else pool[0, :0])
    return found


def attention(problem):
    """Out and lse of a correct kernel with a KV cache, in float64."""
    names = problem.names
    outs, lses = [], []
    for q, *stored_rows in zip(names["q"], keys_of(problem), keys_of(problem, "v"), strict=True):
        k, v = (rows.double().repeat_interleave(names["groups"], 1) for rows in stored_rows)
        scores = torch.einsum("hd,jhd->hj", q.double(), k) * names["scale"]
        lses.append(scores.logsumexp(1))
        weights = (scores - lses[-1][:, None]).exp() if len(k) else scores
        outs.append(torch.einsum("hj,jhd->hd", weights, v))
    return {"out": torch.stack(outs), "lse": torch.stack(lses)}


@pytest.mark.parametrize("layout", [CACHE, PAGED], ids=["cache", "paged"])
def test_reference_attends_to_the_cached_keys(layout):
    problem = make_problem(stored(**layout))
    want = attention(problem)
    for name, tensor in problem.reference().items():
        torch.testing.assert_close(tensor, want[name], rtol=1e-9, atol=1e-9)
        assert problem.outputs[name].shape == tensor.shape
    assert problem.reference()["out"].shape == (4, 4, 4)
    assert problem.reference()["lse"].shape == (4, 4)
    assert not problem.gradient_of


def test_inputs_are_those_of_the_layout():
    cache, paged = make_problem(stored(**CACHE)), make_problem(stored(**PAGED))
    assert set(cache.inputs) == {"q", "k_cache", "v_cache", "seqlens_k"}
    assert set(paged.inputs) == {"q", "k_pages", "v_pages", "block_table", "seqlens_k"}
    for tensors in (cache.inputs, paged.inputs):
        assert tensors["q"].shape == (4, 4, 8)
        assert tensors["seqlens_k"].tolist() == LENGTHS
        assert tensors["seqlens_k"].dtype == torch.int32
    assert cache.inputs["k_cache"].shape == (4, 40, 2, 8)
    assert cache.inputs["v_cache"].shape == (4, 40, 2, 4)
    assert paged.inputs["block_table"].shape == (4, 3)
    assert paged.names["max_pages"] == 3
    assert cache.names["max_seqlen_k"] == 40


def test_capacity_can_exceed_the_longest_sequence():
    values = stored(max_seqlen_k=100, **PAGED)
    assert make_problem(values).inputs["block_table"].shape == (4, 7)
    assert make_problem({**values, **CACHE}).inputs["k_cache"].shape[1] == 100


def test_pages_are_shuffled_unique_and_some_are_spare():
    moved = 0
    for seed in range(5):
        problem = make_problem(stored(**PAGED), seed=seed)
        table, pages = problem.inputs["block_table"], problem.inputs["k_pages"].shape[0]
        owned = [table[b, : -(-n // 16)].tolist() for b, n in enumerate(LENGTHS)]
        flat = list(chain.from_iterable(owned))
        assert len(set(flat)) == len(flat) == 2 + 3 + 1
        assert all(0 <= page < pages for page in flat)
        assert pages > len(flat)
        moved += flat != sorted(flat)
        rest = [table[b, len(mine) :].tolist() for b, mine in enumerate(owned)]
        assert all(entry < 0 or entry >= pages for entry in chain.from_iterable(rest))
    assert moved


@pytest.mark.parametrize("layout", [CACHE, PAGED], ids=["cache", "paged"])
@pytest.mark.parametrize("name", ["k", "v"])
def test_unused_slots_are_huge_or_nan(layout, name):
    def held(seed):
        problem = make_problem(stored(**layout), seed=seed)
        (tensor,) = (t for n, t in problem.inputs.items() if n.startswith(f"{name}_"))
        return tensor, keys_of(problem, name)

    tensor, keys = held(1)
    assert tensor.isnan().sum() == tensor.numel() - sum(each.numel() for each in keys)
    tensor, keys = held(0)
    owned = sum(each.numel() for each in keys)
    assert tensor.isfinite().all()
    assert max(each.abs().max() for each in keys if each.numel()) < 8
    assert tensor.numel() > owned
    assert tensor.float().pow(2).sum() / (tensor.numel() - owned) > 100


def test_pages_moved_breaks_entries_that_ignore_the_block_table():
    problem = make_problem(stored(**PAGED))
    relations = {each.name: each for each in problem.relations("relations")}
    relation = relations["pages_moved"]
    (moved,) = relation.problems
    assert relation.exact
    assert not torch.equal(moved.inputs["block_table"], problem.inputs["block_table"])
    for mine, theirs in zip(keys_of(problem), keys_of(moved), strict=True):
        assert torch.equal(mine, theirs)
    first = [each.inputs["k_pages"][0] for each in (problem, moved)]
    assert not torch.equal(*first)


@pytest.mark.parametrize("layout", [CACHE, PAGED], ids=["cache", "paged"])
def test_relations_hold_for_the_reference(layout):
    axes = {"page_size": [16, 8, None], "layout": ["cache", "paged"]}
    seen = set()
    for seed in range(4):
        values = {"page_size": 16, **stored(**layout)}
        problem = make_problem(values, seed=seed, axes=axes)
        for kind in ("isolation", "poison", "relations", "repeat"):
            for relation in problem.relations(kind):
                seen.add(relation.name)
                mine = relation.left(attention(problem))
                other = relation.right([attention(each) for each in relation.problems])
                for name in mine:
                    torch.testing.assert_close(other[name], mine[name], rtol=1e-9, atol=1e-9)
    assert {"isolation_sequence", "isolation_head", "poison_neighbours", "repeat"} <= seen
    assert {"batch_permuted", "batch_split", "batch_extended", "keys_permuted"} <= seen
    assert {"other_cache_layout"} <= seen
    assert ({"pages_moved", "other_page_size"} <= seen) == (layout is PAGED)


def test_isolation_changes_only_pages_of_its_sequence():
    problem = make_problem(stored(**PAGED))
    (relation,) = (r for r in problem.relations("isolation") if r.name == "isolation_sequence")
    (other,) = relation.problems
    assert torch.equal(other.inputs["block_table"], problem.inputs["block_table"])
    bits = [each.inputs["k_pages"].view(torch.int16) for each in (other, problem)]
    pages = (bits[0] != bits[1]).flatten(1).any(1)
    changed = set(pages.nonzero().flatten().tolist())
    owners = [
        number
        for number, length in enumerate(LENGTHS)
        if changed & set(problem.inputs["block_table"][number, : -(-length // 16)].tolist())
    ]
    assert len(owners) == 1


def test_with_inputs_restores_packed_tensors():
    problem = make_problem(stored(**PAGED))
    again = problem.with_inputs({"k_pages": problem.inputs["k_pages"] * 2})
    for mine, theirs in zip(keys_of(problem), keys_of(again), strict=True):
        assert torch.equal(mine * 2, theirs)
    assert torch.equal(*(each.inputs["v_pages"].view(torch.int16) for each in (again, problem)))


def test_cost_with_a_window_counts_its_keys():
    whole, some = (make_problem(stored(**CACHE, window=window)) for window in (None, 3))
    assert whole.cost().bytes - some.cost().bytes == (62 - 9) * 2 * (8 + 4) * 2


@pytest.mark.parametrize(
    ("values", "axis", "words"),
    [
        ({**CACHE, "seqlens": {"q": [2, 1], "k": [5, 5]}}, "seqlens", "one query for each"),
        ({**CACHE, "seqlens": [5, 5]}, "seqlens", "one query for each"),
        ({"layout": "paged"}, "page_size", "add page_size: [16]"),
        ({**PAGED, "page_size": 0}, "page_size", "a number of keys >= 1"),
        ({**CACHE, "max_seqlen_k": 39}, "max_seqlen_k", "less than the longest sequence (40)"),
    ],
)
def test_invalid_values_of_cache_layouts_are_errors(values, axis, words):
    with pytest.raises(AxisError, match=r".") as caught:
        make_problem(stored(**values))
    assert caught.value.axis == axis
    assert words in str(caught.value)


def test_lint_reports_missing_axes_of_cache_layouts():
    def issues(**axes):
        base = {"dtype": ["float16"], "kv_heads": [1], "head_dim": [8]}
        spec = make_spec(axes=base | axes)
        return [issue.message for issue in family_for(spec).lint(spec)]

    lengths = [{"q": 1, "k": [3]}]
    assert issues(layout=["cache"], seqlens=lengths, window=[None, 3]) == []
    assert issues(layout=["paged"], seqlens=lengths, page_size=[16]) == []
    (message,) = issues(layout=["paged"], seqlens=lengths)
    assert "add page_size" in message
    (message,) = issues(layout=["cache"], seqlen_q=[1])
    assert "needs the axis seqlens" in message


def test_factory_can_take_names_of_cache_layouts():
    spec = make_spec(
        factory="some.module:factory",
        axes={axis: [value] for axis, value in stored(**PAGED).items()},
        factory_args={"page_size": "page_size", "width": "max_pages"},
        call=["q", "k_pages", "v_pages", "block_table", "seqlens_k", "out", "scale"],
        returns=["out"],
    )
    assert list(family_for(spec).lint(spec)) == []
    problem = family_for(spec).problem(spec, stored(**PAGED), seed=1, device=CPU)
    assert all(name in problem.names or name == "out" for name in spec.call)


@pytest.mark.parametrize("freed", [True, False])
def test_pages_before_the_window_are_not_in_the_table_unless_they_stay(freed):
    more = {} if freed else {"freed_pages": False}
    problem = make_problem(stored([70, 20, 0], window=21, **PAGED, **more))
    pool = problem.inputs["k_pages"].shape[0]
    table = problem.inputs["block_table"]
    known = (table >= 0) & (table < pool)
    # Keys 49 to 69 of 70 are visible: pages 3 and 4; all 20 keys of the second sequence.
    visible = [[not freed] * 3 + [True] * 2, [True] * 2 + [False] * 3, [False] * 5]
    assert known.tolist() == visible


def test_results_do_not_depend_on_pages_before_the_window():
    kept, freed = (
        make_problem(stored([70, 20], window=21, freed_pages=value, **PAGED)).reference()
        for value in (False, True)
    )
    assert all(torch.equal(kept[name], freed[name]) for name in kept)


# Padded tensors -----------------------------------------------------------------------------------


TOKENS = {"q": [5, 0, 9], "k": [7, 3, 9]}
PADDINGS = ["right", "left", "holes"]


def padded(padding, **values):
    base = {"dtype": "float16", "kv_heads": 2, "groups": 2, "head_dim": 8, "head_dim_v": 4}
    asked = {"layout": "padded", "padding": padding, "seqlens": TOKENS, "values": "normal"}
    return {**base, **asked, **values}


def packed(padding):
    values = padded(padding, layout="thd")
    del values["padding"]
    return make_problem(values)


@pytest.mark.parametrize("padding", PADDINGS)
def test_tokens_of_padded_inputs_equal_packed_sequences(padding):
    names, flat = make_problem(padded(padding)).names, packed(padding).names
    for name in ("q", "k", "v", "do"):
        mask = names["mask_k" if name in ("k", "v") else "mask_q"]
        assert torch.equal(names[name][mask], flat[name])
        rest = names[name][~mask]
        assert rest.numel()
        assert (rest.isnan() | (rest.abs() > 1000)).all()
    assert names["mask_q"].sum(1).tolist() == TOKENS["q"]
    assert names["mask_k"].sum(1).tolist() == TOKENS["k"]
    assert names["q"].shape[1] == names["seqlen_q"]


@pytest.mark.parametrize(("padding", "first"), [("right", [True, False]), ("left", [False, True])])
def test_padding_is_at_the_position_of_the_axis(padding, first):
    row = make_problem(padded(padding)).names["mask_q"][0]
    assert [bool(row[0]), bool(row[-1])] == first


@pytest.mark.parametrize("padding", PADDINGS)
def test_results_equal_packed_ones_and_are_zero_in_the_padding(padding):
    problem, flat = make_problem(padded(padding)), packed(padding)
    want = flat.reference()
    for name, tensor in problem.reference().items():
        assert tensor.shape == problem.outputs[name].shape
        mask = problem.names["mask_k" if name in ("dk", "dv") else "mask_q"]
        if name == "lse":
            assert torch.equal(tensor.transpose(1, 2)[mask].T, want[name])
            assert (tensor.transpose(1, 2)[~mask] == -torch.inf).all()
        else:
            assert torch.equal(tensor[mask], want[name])
            assert not tensor[~mask].any()
        assert problem.outputs[name].magnitude().shape == tensor.shape


@pytest.mark.parametrize("kind", ["relations", "isolation", "poison", "repeat"])
def test_relations_of_padded_tensors_hold_for_the_reference(kind):
    problem = make_problem(padded("holes"))
    for relation in problem.relations(kind):
        left = relation.left(problem.reference())
        right = relation.right([other.reference() for other in relation.problems])
        for name in left:
            torch.testing.assert_close(left[name], right[name], rtol=1e-9, atol=1e-9)


MASKED = """
name: masked
problem: attention
entry: attention_placement_code:ENTRY
axes:
  layout: [padded]
  padding: [holes]
  dtype: [float16]
  kv_heads: [1, 2, 3]
  groups: [1]
  head_dim: [8, 16]
  causal: [false]
  seqlens: [{q: [5, 2, 9], k: [7, 3, 9]}, {q: [4, 8], k: same}]
returns: [out]
checks: [numeric, relations]
"""
CODE = """
import torch


def attend(q, k, v, mask_q, mask_k):
    q, k, v = (each.nan_to_num(0.0, 0.0, 0.0).float().transpose(1, 2) for each in (q, k, v))
    k, v = (torch.where(mask_k[:, None, :, None], each, 0.0) for each in (k, v))
    s = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
    p = s.masked_fill(~mask_k[:, None, None], -torch.inf).softmax(-1).nan_to_num(0.0)
    out = torch.where(mask_q[:, None, :, None], p @ v, 0.0)
    return out.transpose(1, 2).half()


def all_tokens(x):
    return torch.ones(x.shape[:2], dtype=torch.bool)


def right(q, k, v, mask_q=None, mask_k=None):
    mask_q, mask_k = (
        all_tokens(x) if mask is None else mask for x, mask in ((q, mask_q), (k, mask_k))
    )
    return attend(q, k, v, mask_q, mask_k)


def needs_masks(q, k, v, mask_q, mask_k):
    return attend(q, k, v, mask_q, mask_k)


def mask_of_queries(q, k, v, mask_q=None, mask_k=None):
    if mask_k is None and q.shape[1] == k.shape[1]:
        mask_k = mask_q
    return right(q, k, v, mask_q, mask_k)


def no_queries(q, k, v, mask_q=None, mask_k=None):
    return right(q, k, v, mask_k if mask_q is None else mask_q, mask_k)
"""


@pytest.mark.parametrize(
    ("entry", "left_out"),
    [
        ("right", None),
        ("needs_masks", None),
        ("mask_of_queries", "mask_k"),
        ("no_queries", "mask_q"),
    ],
)
def test_a_mask_that_is_left_out_lets_all_positions_through(
    code_folder, monkeypatch, entry, left_out
):
    monkeypatch.setattr(relations, "_OF_MASKS", 1)
    found = findings_of(MASKED.replace("ENTRY", entry), code_folder / "masked.yaml")
    assert bool(found) == (left_out is not None), found
    for finding in found:
        assert finding.title.startswith("without_mask: out: ")
        assert f"called without {left_out}" in finding.detail


def test_layout_padded_needs_seqlens():
    values = {"dtype": "float16", "heads": 1, "head_dim": 8, "layout": "padded", "seqlen_q": 4}
    spec = make_spec(axes={axis: [value] for axis, value in values.items()})
    with pytest.raises(AxisError, match="layout padded needs the axis seqlens"):
        family_for(spec).problem(spec, values, seed=0, device=CPU)


@pytest.mark.parametrize("padding", PADDINGS)
def test_q_and_k_can_share_a_mask(padding):
    asked = {"shared_mask": True, "seqlens": [5, 0, 9]}
    names = make_problem(padded(padding, **asked)).names
    assert names["mask"] is names["mask_q"]
    assert torch.equal(names["mask"], names["mask_k"])
    assert names["seqlen"] == names["q"].shape[1] == names["k"].shape[1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "write seqlens with k: same"),
        ({"layout": "thd"}, "shared_mask needs the layout padded, not thd"),
    ],
)
def test_invalid_shared_masks_are_errors(values, words):
    with pytest.raises(AxisError, match=words):
        make_problem(padded("right", shared_mask=True, **values))
