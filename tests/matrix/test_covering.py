import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_matrices import all_rows, every_tuple, forbid, held, spaces

from tlmatrix.matrix import covering
from tlmatrix.matrix.coverage_proof import prove, tuples
from tlmatrix.matrix.covering import complete, covering_rows, reduce_rows
from tlmatrix.matrix.space import Space


@given(spaces(), st.integers(1, 4))
@settings(deadline=None)
def test_rows_hold_exactly_the_tuples_that_some_case_holds(space, strength):
    rows, proof = covering_rows(space, strength)
    every = all_rows(space)
    assert set(rows) <= set(every)
    assert len(set(rows)) == len(rows)
    strength = min(strength, len(space.sizes))
    feasible = held(every, strength)
    assert held(rows, strength) == feasible
    assert proof.holds
    assert proof.feasible == proof.covered == len(feasible)
    assert set(proof.infeasible) == every_tuple(space, strength) - feasible
    assert proof.total == tuples(space, strength) == proof.feasible + len(proof.infeasible)


@given(spaces(), st.integers(1, 3), st.data())
@settings(deadline=None)
def test_any_rows_are_completed_to_a_covering(space, strength, data):
    every = all_rows(space)
    strength = min(strength, len(space.sizes))
    rows = data.draw(st.lists(st.sampled_from(every), max_size=4)) if every else []
    proof = prove(space, rows, strength)
    assert set(proof.missing) == held(every, strength) - held(rows, strength)
    whole = complete(space, rows, proof.missing, strength)
    assert list(whole[: len(rows)]) == rows
    assert set(whole) <= set(every)
    assert held(whole, strength) == held(every, strength)
    fewer = reduce_rows(whole, strength)
    assert held(fewer, strength) == held(whole, strength)
    for row in fewer:  # none can go
        assert held([each for each in fewer if each is not row], strength) < held(fewer, strength)


@given(spaces(), st.integers(1, 3), st.integers(0, 3))
@settings(deadline=None)
def test_rows_are_the_same_every_time(space, strength, seed):
    again = Space(space.axes, reversed(space.constraints))
    assert covering_rows(space, strength, seed)[0] == covering_rows(again, strength, seed)[0]


def test_a_seed_gives_other_rows():
    space = Space(dict.fromkeys("abcde", (0, 1, 2)))
    one, other = covering_rows(space, 2, seed=1)[0], covering_rows(space, 2, seed=2)[0]
    assert set(one) != set(other)


def test_as_many_axes_as_the_strength_or_fewer_give_the_product():
    space = Space({"a": (0, 1), "b": (0, 1)}, [forbid("ab", [(1, 1)])])
    for strength in (2, 3, 9):
        assert covering_rows(space, strength)[0] == ((0, 0), (0, 1), (1, 0))


def test_a_strength_below_one_is_refused():
    with pytest.raises(ValueError, match="must be at least 1"):
        covering_rows(Space({"a": (0, 1)}), 0)


def test_tuples_that_the_library_misses_are_added(monkeypatch):
    space = Space(dict.fromkeys("abcd", (0, 1, 2)), [forbid("abc", [(0, 0, 0), (1, 1, 1)])])
    library = covering.library_rows

    def loses_most(space, strength, seed=0):
        return library(space, strength, seed)[:2]

    monkeypatch.setattr(covering, "library_rows", loses_most)
    rows, proof = covering_rows(space, 3)
    assert proof.holds
    assert held(rows, 3) == held(all_rows(space), 3)


def test_too_many_tuples_for_the_library_are_still_covered(monkeypatch):
    def never(*_):
        raise AssertionError("the library takes minutes for this many")

    monkeypatch.setattr(covering, "library_rows", never)
    space = Space({name: tuple(range(20)) for name in "abcdefghijk"})
    rows, proof = covering_rows(space, 2)
    assert proof.holds
    assert proof.covered == 55 * 400
    assert len(rows) < 2 * 400


def test_a_tuple_that_constraints_exclude_together_is_proven_infeasible():
    """a=0 needs b=1, and b=1 needs c=1: no constraint names a and c, yet a=0, c=0 cannot be."""
    space = Space(
        {"a": (0, 1), "b": (0, 1), "c": (0, 1)},
        [forbid("ab", [(0, 0)]), forbid("bc", [(1, 0)])],
    )
    _, proof = covering_rows(space, 2)
    assert ((0, 2), (0, 0)) in proof.infeasible
    assert len(proof.infeasible) == 3


def test_a_missing_tuple_is_reported():
    space = Space({"a": (0, 1), "b": (0, 1), "c": (0, 1)})
    proof = prove(space, [(0, 0, 0), (0, 1, 1), (1, 0, 1)], 2)
    assert not proof.holds
    assert set(proof.missing) == {((0, 1), (1, 1)), ((0, 2), (1, 0)), ((1, 2), (1, 0))}


def test_a_row_that_violates_a_constraint_is_refused():
    space = Space({"a": (0, 1), "b": (0, 1)}, [forbid("ab", [(1, 1)])])
    with pytest.raises(ValueError, match="violates a constraint"):
        prove(space, [(1, 1)], 1)


def test_an_empty_space_has_no_rows_and_every_tuple_infeasible():
    space = Space({"a": (0, 1), "b": (0, 1), "c": (0,)}, [forbid("a", [(0,), (1,)])])
    rows, proof = covering_rows(space, 2)
    assert rows == ()
    assert proof.holds
    assert len(proof.infeasible) == proof.total == 8
