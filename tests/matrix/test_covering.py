import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_matrices import all_rows, forbid, held, spaces
from spec_text import spec_from

from tlmatrix.cache_files import cache_folder
from tlmatrix.matrix import covering, expansion
from tlmatrix.matrix.covering import compile_classes, covering_rows, reduce_rows, uncovered
from tlmatrix.matrix.space import Space
from tlmatrix.problem import family_for
from tlmatrix.spec import load_spec
from tlmatrix.spec.values import canonical


@given(spaces(), st.integers(1, 4))
@settings(deadline=None)
def test_rows_hold_exactly_the_tuples_that_some_case_holds(space, strength):
    rows = covering_rows(space, strength)
    every = all_rows(space)
    assert set(rows) <= set(every)
    assert len(set(rows)) == len(rows)
    strength = min(strength, len(space.sizes))
    feasible = held(every, strength)
    assert held(rows, strength) == feasible
    assert not uncovered(space, rows, strength)


@given(spaces(), st.integers(1, 3), st.data())
@settings(deadline=None)
def test_rows_that_add_nothing_are_removed(space, strength, data):
    every = all_rows(space)
    strength = min(strength, len(space.sizes))
    rows = data.draw(st.lists(st.sampled_from(every), max_size=4)) if every else []
    assert set(uncovered(space, rows, strength)) == held(every, strength) - held(rows, strength)
    fewer = reduce_rows(every, strength)
    assert held(fewer, strength) == held(every, strength)
    for row in fewer:
        assert held([each for each in fewer if each is not row], strength) < held(fewer, strength)


@given(spaces(), st.integers(1, 3), st.integers(0, 3))
@settings(deadline=None)
def test_rows_are_the_same_every_time(space, strength, seed):
    again = Space(space.axes, reversed(space.constraints))
    assert covering_rows(space, strength, seed) == covering_rows(again, strength, seed)


def test_a_seed_gives_other_rows():
    space = Space(dict.fromkeys("abcde", (0, 1, 2)))
    one, other = covering_rows(space, 2, seed=1), covering_rows(space, 2, seed=2)
    assert set(one) != set(other)


def test_as_many_axes_as_the_strength_or_fewer_give_the_product():
    space = Space({"a": (0, 1), "b": (0, 1)}, [forbid("ab", [(1, 1)])])
    for strength in (2, 3, 9):
        assert covering_rows(space, strength) == ((0, 0), (0, 1), (1, 0))


def test_a_strength_below_one_is_refused():
    with pytest.raises(ValueError, match="must be at least 1"):
        covering_rows(Space({"a": (0, 1)}), 0)


def test_tuples_that_the_library_misses_are_added(monkeypatch):
    space = Space(dict.fromkeys("abcd", (0, 1, 2)), [forbid("abc", [(0, 0, 0), (1, 1, 1)])])
    library = covering._library_rows

    def loses_most(space, strength, seed=0):
        return library(space, strength, seed)[:2]

    monkeypatch.setattr(covering, "_library_rows", loses_most)
    rows = covering_rows(space, 3)
    assert held(rows, 3) == held(all_rows(space), 3)


def test_too_many_tuples_for_the_library_are_still_covered(monkeypatch):
    def never(*_):
        raise AssertionError("the library takes minutes for this many")

    monkeypatch.setattr(covering, "_library_rows", never)
    space = Space({name: tuple(range(20)) for name in "abcdefghijk"})
    rows = covering_rows(space, 2)
    assert len(held(rows, 2)) == 55 * 400
    assert len(rows) < 2 * 400


def test_a_tuple_that_constraints_exclude_together_is_infeasible():
    """a=0 needs b=1, and b=1 needs c=1: no constraint names a and c, yet a=0, c=0 cannot be."""
    space = Space(
        {"a": (0, 1), "b": (0, 1), "c": (0, 1)}, [forbid("ab", [(0, 0)]), forbid("bc", [(1, 0)])]
    )
    rows = covering_rows(space, 2)
    assert ((0, 2), (0, 0)) not in held(rows, 2)
    assert len(held(rows, 2)) == 12 - 3
    assert not uncovered(space, rows, 2)


def test_a_missing_tuple_is_reported():
    space = Space({"a": (0, 1), "b": (0, 1), "c": (0, 1)})
    missing = uncovered(space, [(0, 0, 0), (0, 1, 1), (1, 0, 1)], 2)
    assert set(missing) == {((0, 1), (1, 1)), ((0, 2), (1, 0)), ((1, 2), (1, 0))}


def test_a_row_that_violates_a_constraint_is_refused():
    space = Space({"a": (0, 1), "b": (0, 1)}, [forbid("ab", [(1, 1)])])
    with pytest.raises(ValueError, match="violates a constraint"):
        uncovered(space, [(1, 1)], 1)


def test_an_empty_space_has_no_rows_and_every_tuple_infeasible():
    space = Space({"a": (0, 1), "b": (0, 1), "c": (0,)}, [forbid("a", [(0,), (1,)])])
    rows = covering_rows(space, 2)
    assert rows == ()
    assert not uncovered(space, rows, 2)


# Shared kernels ------------------------------------------------------------------------------

AXES = {
    "dtype": ["float16", "bfloat16"],
    "head_dim": [32, 64, 96, 128],
    "window": [None, 1, 63, 128],
    "seqlen_q": [1, 16, 17, 64, 65],
    "seqlen_k": [1, 16, 17, 64, 65],
}
COMPILED = ["dtype", "head_dim", "window is not none"]


def expand(spec, **options):
    key = partial(family_for(spec).compile_key, spec)
    return expansion.expand(spec, compile_key=key, **options)


@given(spaces(), st.integers(1, 3), st.data())
@settings(deadline=None, max_examples=60)
def test_every_feasible_tuple_is_covered_whatever_decides_the_kernels(space, strength, data):
    named = data.draw(st.lists(st.sampled_from(space.names), unique=True, max_size=3))
    coarse = data.draw(st.booleans())

    def key(values):
        return tuple(values[name] // 2 if coarse else values[name] for name in named)

    classes = compile_classes(space, key, [space.values([0] * len(space.names))])
    rows = covering_rows(space, strength, 0, classes)
    strength = min(strength, len(space.sizes))
    assert held(rows, strength) == held(all_rows(space), strength)


def test_as_few_kernels_as_the_tuples_over_compile_axes_need():
    spec = spec_from(AXES, compile_axes=COMPILED)
    cases = list(expand(spec))
    compiled = {(case["dtype"], case["head_dim"], case["window"] is None) for case in cases}
    assert len(compiled) == 8  # the pairs of dtype and head_dim
    plain = spec_from(AXES)
    assert len(cases) <= 1.15 * expand(plain).count()
    assert {(case["window"], case["head_dim"]) for case in cases} == {
        (window, dim) for window in AXES["window"] for dim in AXES["head_dim"]
    }


def test_values_with_equal_keys_are_a_class():
    space = Space({"a": (0, 1, 2, 3), "b": (0, 1), "c": (5, 6)})
    classes = compile_classes(space, lambda values: (values["a"] > 1, values["c"]))
    assert [space.names[at] for at in classes.positions] == ["a", "c"]
    assert classes.classes == ((0, 0, 1, 1), (0, 1))


@pytest.mark.parametrize("key", [lambda _: 0, lambda values: tuple(values.values())])
def test_nothing_to_share_if_no_axis_or_every_axis_decides(key):
    assert compile_classes(Space({"a": (0, 1), "b": (0, 1)}), key) is None


def test_listed_cases_share_their_kernels_with_the_tier():
    extra = {"dtype": "bfloat16", "head_dim": 96, "window": 7, "seqlen_q": 3, "seqlen_k": 9}
    axes = {**AXES, "window": [*AXES["window"], 7]}
    spec = spec_from(axes, compile_axes=COMPILED, extra_cases=[extra])
    keys = [(case["dtype"], case["head_dim"], case["window"] is None) for case in expand(spec)]
    assert keys[0] in keys[1:]
    assert len(set(keys)) == 8


def test_compile_axes_name_axes(tmp_path):
    path = tmp_path / "wrong.yaml"
    data = {
        "name": "wrong",
        "problem": "attention",
        "entry": "a.b:c",
        "axes": {"dtype": ["float16"]},
    }
    path.write_text(json.dumps({**data, "compile_axes": ["dtypes"]}))
    with pytest.raises(Exception, match="unknown name 'dtypes'"):
        load_spec(path)


def test_order_of_axes_does_not_matter():
    other = spec_from(dict(reversed(AXES.items())), compile_axes=COMPILED)
    spec = spec_from(AXES, compile_axes=COMPILED)
    ids = [sorted(canonical(dict(each.values)) for each in expand(one)) for one in (spec, other)]
    assert ids[0] == ids[1]


# The cache -----------------------------------------------------------------------------------


@pytest.fixture
def computed(monkeypatch):
    """The strengths of the arrays that were computed rather than read."""
    calls = []

    def counting(space, strength, *arguments):
        calls.append(strength)
        return covering_rows(space, strength, *arguments)

    monkeypatch.setattr(expansion, "covering_rows", counting)
    return calls


def test_rows_are_computed_once(computed, tmp_path, monkeypatch):
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path))
    first, again = (expand(spec_from(AXES, compile_axes=COMPILED)) for _ in range(2))
    assert list(first) == list(again)
    assert computed == [2]
    for changed in (
        spec_from(AXES),
        spec_from(AXES, compile_axes=["dtype"]),
        spec_from({**AXES, "head_dim": [32, 64, 96]}, compile_axes=COMPILED),
        spec_from(AXES, ["seqlen_q <= seqlen_k"], compile_axes=COMPILED),
        spec_from(AXES, compile_axes=COMPILED, tiers={"quick": {"strategy": "3-wise"}}),
    ):
        expand(changed)
    assert computed == [2, 2, 2, 2, 2, 3]
    expand(spec_from(AXES, compile_axes=COMPILED), seed=5)
    assert computed[6:] == [2]


def test_damaged_files_are_computed_again(computed, tmp_path, monkeypatch):
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path))
    spec = spec_from(AXES)
    cases = list(expand(spec))
    (file,) = (cache_folder() / "covering").iterdir()
    file.write_bytes(b"[[0, 0, 0, 0]]")
    assert list(expand(spec)) == cases
    assert computed == [2, 2]


def test_a_cache_that_cannot_be_written_is_no_error(computed, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert expand(spec_from(AXES)).count() > 16
