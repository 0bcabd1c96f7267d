"""Who has which element of a whole problem: every one has an owner, and comes back to its place."""

import pytest
import torch

from tlmatrix.problem import family_for
from tlmatrix.problem.sharding import (
    NotSharedError,
    Sharding,
    UnevenError,
    owners,
    parts,
    with_owners,
)
from tlmatrix.spec import SpecError, parse_spec

CPU = torch.device("cpu")
GEMM = """
name: gemm
problem: gemm
entry: a:b
axes: {world: [WORLD], dtype: [float16], m: [66], n: [8], k: [12]}
shards: SHARDS
"""
PACKED = """
name: packed
problem: attention
entry: a:b
axes:
  world: [WORLD]
  dtype: [bfloat16]
  kv_heads: [1]
  head_dim: [8]
  seqlens: [{q: [17, 0, 64], k: [9, 5, 1]}]
shards: {q: SHARD, k: SHARD, v: SHARD, out: SHARD, lse: SHARD}
"""


def made(text, world, shards):
    text = text.replace("WORLD", str(world)).replace("SHARDS", shards).replace("SHARD", shards)
    spec = parse_spec(text)
    values = {axis: listed[0] for axis, listed in spec.axes.items()}
    return spec, family_for(spec).problem(spec, values, seed=3, device=CPU)


@pytest.mark.parametrize("uneven", ["balanced", "ceil"])
@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("lengths", [[0], [1], [64], [65, 7, 0, 3]])
def test_every_row_has_one_owner(lengths, world, order, uneven):
    found = owners(lengths, world, order, uneven)
    rows = [row for mine in found for each in mine for row in each]
    assert sorted(rows) == list(range(sum(lengths)))
    assert all(list(each) == sorted(each) for mine in found for each in mine)


def test_parts_are_even_by_balance_or_by_ceiling():
    assert [len(each) for each in parts(10, 4, "balanced")] == [3, 3, 2, 2]
    assert [len(each) for each in parts(10, 4, "ceil")] == [3, 3, 3, 1]
    assert [len(each) for each in parts(5, 4, "ceil")] == [2, 2, 1, 0]
    tensor_split = [len(each) for each in torch.arange(67).tensor_split(6)]
    assert [len(each) for each in parts(67, 6, "balanced")] == tensor_split
    with pytest.raises(UnevenError):
        parts(10, 4, None)


def test_a_zigzag_gives_each_rank_an_early_and_a_late_chunk():
    assert owners([16], 2, "zigzag") == [[range(4), range(12, 16)], [range(4, 8), range(8, 12)]]


@pytest.mark.parametrize("world", [1, 3, 4])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_parts_of_all_ranks_make_the_whole(world, name):
    spec, problem = made(
        GEMM,
        world,
        "{a: {dim: m, uneven: ceil}, b: {dim: 1, uneven: ceil}, "
        "c: {dim: n, order: zigzag, uneven: balanced}}",
    )
    sharding = Sharding.of(spec, problem)
    whole = problem.inputs[name] if name != "c" else torch.randn(66, 8)
    split = sharding.splits[name]
    again = torch.full_like(whole, float("nan"))
    for rank in range(world):
        part = split.of(whole, rank)
        assert tuple(part.shape) == split.shape(tuple(whole.shape), rank)
        split.put(again, part, rank)
    assert torch.equal(again, whole)


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_packed_rows_are_split_inside_their_sequence(order):
    shard = f"{{dim: seqlen, order: {order}, uneven: balanced}}"
    spec, problem = made(PACKED, 3, shard)
    sharding = Sharding.of(spec, problem)
    count = 3 if order == "contiguous" else 6
    chunks = {
        side: [each.tensor_split(count) for each in problem.inputs[side].split(lengths)]
        for side, lengths in (("q", [17, 0, 64]), ("k", [9, 5, 1]))
    }
    for rank in range(3):
        mine = [rank] if order == "contiguous" else [rank, 5 - rank]
        names = sharding.of_rank(problem, rank).names
        for side in ("q", "k"):
            wanted = [chunk[number] for chunk in chunks[side] for number in mine]
            assert torch.equal(names[side], torch.cat(wanted))
            counts = [sum(len(chunk[number]) for number in mine) for chunk in chunks[side]]
            assert names[f"local_seqlens_{side}"] == counts
            assert names[f"local_max_seqlen_{side}"] == max(counts)
            starts = names[f"local_cu_seqlens_{side}"].tolist()
            assert starts == [sum(counts[:n]) for n in range(4)]


def test_a_rank_has_the_names_of_the_whole_problem():
    spec, problem = made(PACKED, 2, "{dim: position, uneven: ceil}")
    mine = Sharding.of(spec, problem).of_rank(problem, 1)
    assert mine.names["max_seqlen_q"] == 64
    assert mine.names["cu_seqlens_q"].tolist() == [0, 17, 17, 81]
    assert (mine.names["rank"], mine.names["world"]) == (1, 2)
    assert mine.names["cu_seqlens_q"] is not problem.names["cu_seqlens_q"]  # no rank can spoil it


def test_gradients_go_with_inputs_and_cotangents_with_outputs():
    spec, problem = made(PACKED, 2, "{dim: seqlen, uneven: balanced}")
    sharding = Sharding.of(spec, problem)
    assert {"dq", "dk", "dv", "do"} <= sharding.splits.keys()
    mine = sharding.of_rank(problem, 0)
    assert mine.cotangents["out"].shape == mine.inputs["q"].shape
    assert mine.cotangents["out"] is mine.inputs["do"]


def test_a_length_that_ranks_do_not_divide_is_refused_with_what_can_be_done():
    spec, problem = made(GEMM, 4, "{a: {dim: m}}")
    with pytest.raises(NotSharedError) as caught:
        Sharding.of(spec, problem)
    (issue,) = caught.value.issues
    assert (issue.line, issue.column) == (6, 13)
    assert "m is 66, which 4 ranks cannot share evenly" in issue.message
    assert "set uneven: balanced or uneven: ceil" in issue.message
    assert "constraints: [m % world == 0]" in issue.message


def test_a_zigzag_needs_twice_as_many_chunks():
    spec, problem = made(GEMM, 3, "{a: {dim: k, order: zigzag}}")
    Sharding.of(spec, problem)
    spec, problem = made(GEMM, 4, "{a: {dim: k, order: zigzag}}")
    with pytest.raises(NotSharedError, match=r"k is 12, which 8 chunks \(zigzag\)"):
        Sharding.of(spec, problem)


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        ("{a: {dim: 2}}", r"a has no dimension 2; it has 0 \(m\), 1 \(k\)"),
        ("{a: {dim: rows}}", "a has no dimension 'rows'. Its dimensions: m, k"),
        ("{a: {dim: m, own: true}}", "a: m is 66, and there are 2 ranks"),
    ],
)
def test_a_dimension_that_the_tensor_does_not_have_is_refused(shards, words):
    spec, problem = made(GEMM, 2, shards)
    with pytest.raises(SpecError, match=words):
        Sharding.of(spec, problem)


def test_dimensions_of_results_name_the_rank_of_each_element():
    spec, problem = made(GEMM, 4, "{c: {dim: n}, a: {dim: m, uneven: ceil}}")
    dims = with_owners(spec, problem).outputs["c"].dims
    assert dims[0].owner is None
    assert dims[1].owner == (0, 0, 1, 1, 2, 2, 3, 3)
    assert dims[1].describe(5) == {"rank": 2, "n": 5}


def test_relations_that_ranks_cannot_share_are_left_out():
    spec, problem = made(PACKED, 2, "{dim: seqlen}".replace("seqlen", "1"))
    # Heads are one, and two ranks cannot share one.
    with pytest.raises(NotSharedError):
        with_owners(spec, problem)
    text = PACKED.replace("[17, 0, 64], k: [9, 5, 1]", "[18, 0, 64], k: [8, 4, 2]")
    spec, problem = made(text, 2, "{dim: seqlen}")
    names = {relation.name for relation in problem.relations("relations")}
    left = {relation.name for relation in with_owners(spec, problem).relations("relations")}
    assert left <= names
    assert "batch_permuted" in left
