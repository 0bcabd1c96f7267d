"""Relations among the sizes of recorded calls."""

import pytest

from tlmatrix.draft.sizes import relate


def related(columns, names=None, scalars=None, vectors=(), offsets=()):
    return relate(
        columns,
        names or {},
        scalars=scalars or {},
        vectors=frozenset(vectors),
        offsets=frozenset(offsets),
    )


@pytest.mark.parametrize(
    ("sizes", "expression"),
    [
        ((160, 24), "rows * cols"),
        ((20, 4), "cols // 2"),
        ((41, 9), "cols + 1"),
        ((80, 16), "2 * cols"),
        ((44, 11), "cols + rows"),
        ((1, 1), 1),
        ((40, 8), "cols"),
        ((7, 9), "size3"),
    ],
)
def test_a_size_is_the_expression_that_holds_in_all_calls(sizes, expression):
    columns = {("x", 0): (4, 3), ("x", 1): (40, 8), ("y", 0): sizes}
    found = related(columns)
    assert found.dims["y", 0] == expression
    assert not found.guesses


def test_a_named_size_that_is_a_product_in_calls_of_several_sizes_is_one():
    columns = {("x", 0): (4, 4), ("x", 1): (40, 72), ("w", 0): (160, 288)}
    names = {("x", 0): "mult", ("x", 1): "hidden", ("w", 0): "mult_hidden"}
    found = related(columns, names)
    assert found.dims["w", 0] == "mult * hidden"
    assert "mult_hidden" not in found.symbols
    once = related({place: column[:1] for place, column in columns.items()}, names)
    assert once.dims["w", 0] == "mult_hidden"


@pytest.mark.parametrize(("sizes", "name"), [((2, 8), "heads_kv"), ((2, 2), "Hkv")])
def test_a_small_size_that_varies_as_an_argument_does_has_its_name(sizes, name):
    columns = {("k", 0): (256, 64), ("k", 1): sizes}
    found = related(columns, {("k", 1): "Hkv"}, {"heads_kv": sizes})
    assert found.dims["k", 1] == name


def test_equal_sizes_of_a_tensor_in_calls_of_one_size_are_two():
    assert related({("x", 0): (64,), ("x", 1): (64,)}).dims["x", 1] != "rows"
    assert related({("x", 0): (64, 32), ("x", 1): (64, 32)}).dims["x", 1] == "rows"
    # The name that one of them has is not that of the other, nor of what is its size elsewhere.
    columns = {("x", 0): (64,), ("x", 1): (64,), ("scale", 0): (64,)}
    found = related(columns, {("x", 1): "dim"})
    assert found.dims["scale", 0] == found.dims["x", 0] != "dim"


def test_the_length_of_a_vector_is_no_part_of_other_sizes():
    columns = {("a", 0): (27,), ("a", 1): (64,), ("b", 0): (3,), ("sizes", 0): (3,)}
    found = related(columns, vectors=["sizes"])
    assert found.dims["b", 0] == found.dims["sizes", 0] == "size3"


def test_what_holds_in_one_call_only_is_a_guess():
    columns = {("x", 0): (3,), ("x", 1): (40,), ("w", 0): (4,), ("r", 0): (160,)}
    found = related(columns, {("w", 0): "n"})
    assert found.dims["r", 0] == "n * cols"
    assert found.guesses == {"n * cols": ("r_0", (160,))}


def test_a_quotient_that_leaves_a_rest_is_none():
    columns = {("x", 0): (69,), ("x", 1): (16,), ("cos", 0): (8,)}
    assert related(columns).dims["cos", 0] == "cols // 2"


def test_a_number_that_callers_pass_names_the_dimension_with_its_size():
    columns = {("x", 0): (5, 6), ("x", 1): (40, 72)}
    names = {("x", 1): "N"}
    found = related(columns, names, scalars={"hidden": (40, 72)})
    assert found.dims["x", 1] == "hidden"
    assert found.symbols == {"hidden": (40, 72), "rows": (5, 6)}


def test_lengths_of_offsets_are_of_no_other_dimension():
    columns = {("x", 0): (24,), ("x", 1): (3,), ("cu", 0): (3,)}
    found = related(columns, vectors=["cu"], offsets=["cu"])
    assert found.dims["cu", 0] == "bounds"


def test_dimensions_that_are_equal_in_all_calls_have_one_expression():
    columns = {("kv", 0): (256,), ("kv", 1): (128,), ("q", 0): (64,), ("scale", 0): (256,)}
    found = related(columns, {("kv", 1): "dim", ("q", 0): "heads"})
    assert found.dims["kv", 0] == found.dims["scale", 0] == "4 * heads"
    assert [*found.guesses] == ["4 * heads"]


def test_a_number_that_another_name_is_divided_by_is_not_its_size():
    columns = {("q", 0): (16,), ("k", 0): (1,), ("ids", 0): (16,)}
    names = {("q", 0): "heads", ("k", 0): "heads // groups", ("ids", 0): "16"}
    for scalars in ({"groups": (16,)}, {"dim": (16,), "groups": (16,)}):
        found = related(columns, names, scalars=scalars)
        assert [*found.dims.values()] == ["heads", 16, "heads // groups"]
        assert found.symbols == {"heads": (16,), **scalars}
