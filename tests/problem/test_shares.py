"""`tlmatrix check` names sizes that ranks share and of which no case has some kind."""

import pytest

from tlmatrix.problem import family_for
from tlmatrix.problem.lint import lint_shares, sharded_axes
from tlmatrix.spec import parse_spec

GEMM = """
name: product
problem: gemm
entry: none:product
axes: {{world: [1, 4], dtype: [float16], m: {m}, n: [{n}], k: [8]}}
shards: {{a: {{dim: m{uneven}}}, b: {{dim: n{uneven}}}, c: {{dim: m{uneven}}}}}
{more}
"""
ROWS = """
name: rows
problem:
  inputs: {{x: {{shape: [rows, 4], dtype: float32}}}}
  outputs: [y]
  reference: torch:clone
entry: none:rows
axes: {{world: [1, 2], rows: {rows}}}
shards: {{x: {{dim: 0, uneven: balanced}}, y: {{dim: 0, uneven: balanced}}}}
"""
COLLECTIVE = """
name: gather
problem: collective
entry: none:gather
axes: {{operation: [all_gather], world: [2, 4], dtype: [float16], rows: {rows}, cols: [1]{uneven}}}
"""
PACKED = """
name: packed
problem: attention
entry: none:packed
axes:
  {{world: [2], dtype: [float16], kv_heads: [1], groups: [1], head_dim: [32], seqlens: {seqlens}}}
shards: {{q: {{dim: seqlen, uneven: balanced}}}}
"""
FEWER, UNEVEN = "fewer than ranks", "that the ranks do not divide"


def missing(text):
    spec = parse_spec(text)
    return [
        tuple(issue.message.removeprefix("no case has a number of ").split(": ")[0].split(" ", 1))
        for issue in lint_shares(spec, family_for(spec))
    ]


@pytest.mark.parametrize(
    ("m", "more", "expected"),
    [
        ("[1, 9]", "", []),
        ("[4, 8]", "", [("m", FEWER), ("m", UNEVEN)]),
        ("[3, 8]", "", [("m", UNEVEN)]),
        ("[8]", "extra_cases: [{m: 2}, {m: 5}]", []),
        ("[8]", "fuzz: {axes: {m: 1..20}}", []),
        ("[8]", "fuzz: {axes: {m: 7..20}}", [("m", FEWER)]),
        ("[4, 9]", "constraints: [m >= world]", []),
        ("[4, 8]", "constraints: [m % world == 0]", []),
        ("[4, 9]", "constraints: [m >= 1]", [("m", FEWER)]),
    ],
)
def test_sizes_of_a_product(m, more, expected):
    text = GEMM.format(m=m, n="2, 9", uneven=", uneven: balanced", more=more)
    assert missing(text) == expected


def test_equal_shares_are_all_that_a_spec_without_uneven_can_have():
    assert missing(GEMM.format(m="[4]", n="4", uneven="", more="")) == []


def test_a_declared_problem_has_dimensions_by_number():
    assert missing(ROWS.format(rows="[4]")) == [("rows", FEWER), ("rows", UNEVEN)]
    assert missing(ROWS.format(rows="[1, 5]")) == []


def test_rows_of_a_collective():
    even, uneven = "", ", uneven: [ceil]"
    assert missing(COLLECTIVE.format(rows="[8]", uneven=even)) == []
    assert missing(COLLECTIVE.format(rows="[8]", uneven=uneven)) == [
        ("rows", FEWER),
        ("rows", UNEVEN),
    ]


def test_lengths_of_packed_sequences():
    assert missing(PACKED.format(seqlens="[[4, 8]]")) == [("seqlens", FEWER), ("seqlens", UNEVEN)]
    assert missing(PACKED.format(seqlens="[[1, 5]]")) == []


def test_sharded_axes_are_those_of_split_dimensions():
    spec = parse_spec(GEMM.format(m="[1]", n="1", uneven="", more=""))
    assert sharded_axes(spec, family_for(spec)) == ["m", "n"]
