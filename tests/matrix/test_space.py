from itertools import islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_matrices import all_rows, forbid, spaces

from tlmatrix.matrix.constraints import UNBOUND, Constraint
from tlmatrix.matrix.space import Space


@given(spaces())
def test_rows_are_the_constrained_product_in_its_order(space):
    assert list(space) == all_rows(space)


@given(spaces())
def test_count_is_the_number_of_rows(space):
    assert space.count == len(all_rows(space))


@given(spaces())
def test_removed_counts_each_constraint_alone(space):
    everything = [space.values(row) for row in product(*map(range, space.sizes))]
    assert space.removed() == tuple(
        sum(not each.allows(values) for values in everything) for each in space.constraints
    )


@given(spaces(), st.data())
def test_a_partial_row_is_extensible_exactly_when_some_row_agrees_with_it(space, data):
    partial = [data.draw(st.integers(UNBOUND, size - 1)) for size in space.sizes]
    agrees = any(
        all(want in (UNBOUND, got) for want, got in zip(partial, row, strict=True))
        for row in all_rows(space)
    )
    assert space.extensible(partial) is agrees


@given(spaces())
def test_rows_by_index_are_every_row_once(space):
    by_index = [space[index] for index in range(space.count)]
    assert sorted(by_index) == all_rows(space)


@given(spaces())
def test_failing_lists_the_violated_constraints(space):
    for row in product(*map(range, space.sizes)):
        values = space.values(row)
        expected = [at for at, each in enumerate(space.constraints) if not each.allows(values)]
        assert list(space.failing(row)) == expected
        assert space.allows(row) is (not expected)


def test_an_index_outside_is_an_error():
    space = Space({"a": (1, 2)}, [forbid(["a"], [(2,)])])
    assert space[0] == (0,)
    for index in (1, -1):
        with pytest.raises(IndexError):
            space[index]


def test_a_constant_constraint_keeps_or_removes_everything():
    never = Constraint((), lambda _: False)
    always = Constraint((), lambda _: True)
    space = Space({"a": (1, 2), "b": (1, 2, 3)}, [never, always])
    assert list(space) == []
    assert space.count == 0
    assert space.removed() == (6, 0)
    assert not space.extensible([UNBOUND, UNBOUND])
    assert Space({"a": (1, 2)}, [always]).count == 2


def test_an_axis_without_values_leaves_nothing_wherever_it_stands():
    for axes in ({"a": (), "b": (1, 2)}, {"b": (1, 2), "a": ()}):
        for constraints in ([], [forbid(["a", "b"], [])]):
            space = Space(axes, constraints)
            assert list(space) == []
            assert space.count == 0


def test_values_need_not_be_hashable():
    lengths = ({"q": [1, 2]}, {"q": [3]})
    space = Space(
        {"seqlens": lengths}, [Constraint(("seqlens",), lambda v: len(v["seqlens"]["q"]) == 2)]
    )
    assert [space.values(row) for row in space] == [{"seqlens": {"q": [1, 2]}}]


def test_a_hundred_digits_of_cases_are_counted_and_begun():
    axes = {f"a{number:03}": tuple(range(10)) for number in range(100)}
    constraints = [
        Constraint(
            (f"a{number:03}", f"a{number + 1:03}"),
            lambda values: len(set(values.values())) == 2,  # neighbours differ
        )
        for number in range(99)
    ]
    space = Space(axes, constraints)
    assert space.products == 10**100
    assert space.count == 10 * 9**99
    assert len(list(islice(space, 100))) == 100
    assert space.allows(space[space.count // 3])


def test_dead_ends_are_not_entered():
    """The first axis decides the last: walking what lies between would take 3**30 steps."""
    axes = {"first": (0, 1), **{f"m{at}": (0, 1, 2) for at in range(30)}, "last": (0, 1)}
    space = Space(axes, [forbid(["first", "last"], [(0, 0), (0, 1), (1, 0)])])
    first = next(iter(space))
    assert (first[0], first[-1]) == (1, 1)
    assert space.count == 3**30


def test_a_constraint_is_evaluated_once_for_each_combination():
    asked = []

    def allows(values):
        asked.append(tuple(values.values()))
        return values["a"] <= values["b"]

    space = Space(
        {"a": (1, 2, 3), "b": (1, 2, 3), "c": tuple(range(50))}, [Constraint(("a", "b"), allows)]
    )
    assert len(list(space)) == space.count == 300
    assert space.removed() == (150,)
    assert len(asked) == len(set(asked)) == 9


def test_errors_of_constraints_are_raised_when_the_space_is_made():
    def allows(values):
        return values["a"] < 5

    with pytest.raises(TypeError):
        Space({"a": (1, None)}, [Constraint(("a",), allows)])
