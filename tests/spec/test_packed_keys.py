"""Packed axes in declared problems: derived inputs, and located errors."""

import pytest

from tlmatrix.spec import SpecError, parse_spec
from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.model.packed import call_of, packed_axes

TEXT = """\
name: trial
entry: mypkg.ops:op
problem:
  inputs:
    x: {shape: [sum(seqlens), dim], dtype: float32}
    y: {INPUT}
  outputs: [z]
  reference: mypkg.ops:reference
axes:
  dim: [4]
  seqlens: [[17, 0], {q: [3], k: [4]}]
"""
GOOD = "offsets_of: seqlens.q"


def check(given=GOOD, axis="[[17, 0], [5]]"):
    text = TEXT.replace("INPUT", given).replace("[[17, 0], {q: [3], k: [4]}]", axis)
    try:
        parse_spec(text)
    except SpecError as error:
        return [str(issue).removeprefix("<spec>:") for issue in error.issues]
    return []


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ("offsets_of: seqlens.q, dtype: int64", ["len(seqlens.q) + 1"]),
        ("starts_of: seqlens", ["len(seqlens)"]),
        ("lengths_of: seqlens", ["len(seqlens)"]),
        ("sequence_ids_of: seqlens", ["sum(seqlens)"]),
        ("positions_of: seqlens.k", ["sum(seqlens.k)"]),
        ("pages_of: seqlens, page_size: 16", ["len(seqlens)", "max(ceildiv(seqlens, 16))"]),
        ('offsets_of: "ceildiv(seqlens, 8) * 8"', ["len(ceildiv(seqlens, 8) * 8) + 1"]),
    ],
)
def test_a_derived_input_has_a_shape_and_an_integer_dtype(given, shape):
    spec = parse_spec(TEXT.replace("INPUT", given))
    decl = spec.problem.inputs["y"]
    assert [str(size) for size in decl.sizes] == shape
    assert decl.dtype_text == ("int64" if "int64" in given else "int32")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("offsets_of: seqlen", "6:21: unknown name 'seqlen' in 'seqlen'; did you mean 'seqlens'?"),
        ("offsets_of: dim", "6:21: 'dim' names no packed axis: an axis whose values are lists"),
        ("offsets_of: seqlens, shape: [3]", "6:30: offsets_of defines the tensor; remove"),
        ("offsets_of: seqlens, fill: ramp", "6:30: offsets_of defines the tensor; remove"),
        ("lengths_of: seqlens, starts_of: seqlens", "6:9: starts_of defines the tensor"),
        ("pages_of: seqlens", "6:9: pages_of needs page_size, the rows of a page"),
        ("lengths_of: seqlens, page_size: 4", "6:9: page_size belongs to pages_of, not to leng"),
        ("lengths_of: seqlens, unseen: seqlens - 4", "6:30: unseen belongs to pages_of, not to"),
        ("shape: [dim], dtype: int32, distinct: true", "6:47: distinct belongs to integers with"),
        ("shape: [dim], dtype: int32, unseen: dim", "6:45: unseen belongs to an input with pages"),
        (
            "pages_of: seqlens, page_size: 4, unseen: seqlens - dims",
            "6:60: unknown name 'dims' in 'seqlens - dims'; did you mean 'dim'?",
        ),
        ("lengths_of: seqlens, dtype: float16", "6:37: lengths_of makes int32 or int64, not"),
        ("lengths_of: seqlens, grad: true", "6:36: lengths_of makes integers, which have no"),
        ("offsets_of: seqlens.v", "6:29: 'seqlens.v': 'seqlens' has no side 'v'; a packed axis"),
        ("offsets_of: seqlens - 50", "6:21: 'seqlens - 50': [-33, -50] is not a list of lengths"),
        ("shape: [sum(dim)], dtype: int32", "6:17: 'sum(dim)': sum(4) needs a list of numbers"),
        ("dtype: int32", "6:8: the key 'shape' is missing; add it, or derive the input from"),
        (
            "shape: [pages(seqlens, 16)], dtype: int32",
            "6:30: 'problem.inputs.y.shape[0]': '(' needs a ')', but the expression ends",
        ),
    ],
)
def test_a_malformed_input_is_an_error_at_its_location(given, message):
    assert any(each.startswith(message) for each in check(given)), check(given)


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ("[[17, -1]]", "11:13: seqlens has the length -1; lengths are integers >= 0"),
        ("[[17], 4]", "11:19: seqlens is 4, not a list of lengths; write {q: [17, 64], k: same}"),
        ("[{q: [1], k: [1, 2]}]", "11:13: seqlens has 1 query sequences and 2 key sequences"),
        ("[[3], []]", "11:18: seqlens is empty; at least one sequence is needed"),
    ],
)
def test_an_invalid_packed_value_is_an_error_at_its_location(axis, message):
    assert any(each.startswith(message) for each in check(axis=axis)), check(axis=axis)


def test_an_expression_invalid_for_some_values_only_is_accepted():
    assert check('offsets_of: "seqlens - 4"', "[[17, 5], [3]]") == []


def test_packed_axes_are_the_axes_in_lists_of_lengths():
    text = TEXT.replace("INPUT", 'offsets_of: "ceildiv(counts, dim) * dim"')
    text += "  counts: [[1, 2]]\n  tiles: [[64, 32]]\n"
    assert packed_axes(parse_spec(text)) == ("seqlens", "counts")


def test_call_of_needs_the_whole_expression_to_be_a_call():
    assert call_of("sum(seqlens)") == ("sum", (Expression("seqlens"),))
    assert call_of("pages(ceildiv(a, 2), max(b, c))") == (
        "pages",
        (Expression("ceildiv(a, 2)"), Expression("max(b, c)")),
    )
    for text in ("sum(a) + sum(b)", "(sum(a))", "seqlens", "sum(a) * 2"):
        assert call_of(text) is None


def test_batch_relations_need_a_packed_problem():
    text = TEXT.replace("INPUT", GOOD) + "relations: [batch_split, finite]\n"
    assert [each.name for each in parse_spec(text).relations] == ["batch_split", "finite"]
    plain = text.replace("sum(seqlens)", "dim").replace(GOOD, "shape: [dim], dtype: int32")
    with pytest.raises(SpecError, match="unknown relation 'batch_split'"):
        parse_spec(plain)
