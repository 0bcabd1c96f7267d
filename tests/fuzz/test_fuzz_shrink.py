"""Shrinking of cases without running kernels."""

import pytest
from fuzz_specs import packed_spec

from tlmatrix.fuzz.shrink import shrink
from tlmatrix.matrix import Case
from tlmatrix.spec import parse_spec


def packed_case(**more):
    values = {
        "dtype": "float16", "kv_heads": 2, "head_dim": 64, "causal": False,
        "seqlens": {"q": [17, 64, 3], "k": [5, 80, 9]},
    }  # fmt: skip
    return Case("packed", values | more, "fuzz")


@pytest.mark.parametrize(
    ("axis", "fails", "left"),
    [
        ("max_seqlen_q", lambda told, _: told is not None and told >= 90, 90),
        ("max_seqlen_k", lambda told, longest: told is not None and told > longest, 1),
        ("max_seqlen_k", lambda told, longest: told is None or told < longest + 7, None),
    ],
)
def test_maximum_length_is_shrunk(tmp_path, axis, fails, left):
    spec = packed_spec(tmp_path, "right")

    def failing(case):
        longest = max(case.values["seqlens"][axis[-1]])
        told = case.values.get(axis)
        return (told is None or told >= longest) and fails(told, longest)

    case = packed_case(**{axis: 210})
    if left is None:
        case = packed_case(**{axis: 81})
    done = shrink(spec, case, failing, seconds=20)
    assert done.ended
    assert done.case.values.get(axis) == left
    assert [len(lengths) for lengths in done.case.values["seqlens"].values()] == [1, 1]


def test_shrinking_adds_no_optional_axes(tmp_path):
    spec = packed_spec(tmp_path, "right")
    done = shrink(
        spec, packed_case(), lambda case: max(case.values["seqlens"]["q"]) >= 33, seconds=20
    )
    assert "max_seqlen_q" not in done.case.values
    assert done.case.values["seqlens"]["q"] == [33]


TWO_PACKINGS = """
name: grouped
problem:
  inputs:
    x: {shape: [sum(seqlens), 4], dtype: float32}
    cu_seqlens: {offsets_of: seqlens}
    w: {shape: [sum(counts), 4], dtype: float32}
    offsets: {offsets_of: counts}
  outputs: [y]
  reference: m:f
entry: m:g
axes: {seqlens: [[17, 64, 1]], counts: [[3, 9, 6]]}
constraints:
  - {require: sum(seqlens) > 2, because: of a rule}
fuzz:
  seqlens: {length: 0..90}
  axes: {counts: {sequences: 2..4, length: 5..20}}
"""


def test_packed_axes_shrink_within_range_and_constraints():
    case = Case("grouped", {"seqlens": [40, 64, 1], "counts": [20, 9, 6]}, "fuzz")
    done = shrink(parse_spec(TWO_PACKINGS), case, lambda case: True, seconds=20)
    assert done.ended
    assert done.case.values == {"seqlens": [3], "counts": [5, 5]}


def test_packed_axis_shrinks_to_the_failing_length():
    case = Case("grouped", {"seqlens": [40, 0, 1], "counts": [20, 9, 6]}, "fuzz")

    def fails(case):
        return max(case.values["counts"]) > 8 and 0 in case.values["seqlens"]

    done = shrink(parse_spec(TWO_PACKINGS), case, fails, seconds=20)
    assert done.case.values == {"seqlens": [3, 0], "counts": [5, 9]}
