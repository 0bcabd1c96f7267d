from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_matrices import held
from spec_text import spec_from, spec_of

from tlmatrix.matrix import expand
from tlmatrix.spec import SpecError

AXES = {"a": [1, 2, 3], "b": [False, True], "c": ["x", "y"], "d": [0, 1, 2]}


def ids(expansion):
    return [case.id for case in expansion.cases]


def ids_of(cases):
    return (case.id for case in cases)


def values_of(cases):
    return [dict(case.values) for case in cases]


def values(expansion):
    return [dict(case.values) for case in expansion.cases]


# Strategies -----------------------------------------------------------------------------------


def test_product_is_every_combination_that_satisfies_the_constraints():
    spec = spec_from(AXES, ["a <= 2 or b", "c == 'x' or d != 0"])
    expected = [
        dict(zip(AXES, each, strict=True))
        for each in product(*AXES.values())
        if (each[0] <= 2 or each[1]) and (each[2] == "x" or each[3] != 0)
    ]
    expansion = expand(spec, "full")
    assert values(expansion) == expected
    assert expansion.count() == len(expected)
    assert expansion.combinations == 36


def test_zip_goes_through_all_axes_at_once_and_repeats_a_single_value():
    spec = spec_from(
        {"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [7]}, ["a != 2"], tiers={"quick": "zip"}
    )
    expansion = expand(spec)
    assert values(expansion) == [{"a": 1, "b": "x", "c": 7}, {"a": 3, "b": "z", "c": 7}]
    assert expansion.combinations == 3
    assert list(expansion.removed.values()) == [1]


def test_zip_of_axes_of_different_lengths_is_an_error_at_the_tier():
    spec = spec_of(
        """
        axes: {a: [1, 2], b: [1, 2, 3]}
        tiers:
          quick: {strategy: zip}
        """
    )
    with pytest.raises(SpecError, match=r"tried.yaml:7:10: zip needs .*a has 2, b has 3"):
        expand(spec)


@pytest.mark.parametrize(("strategy", "strength"), [("pairwise", 2), ("2-wise", 2), ("3-wise", 3)])
def test_t_wise_holds_every_feasible_tuple(strategy, strength):
    spec = spec_from(AXES, ["a <= 2 or b", "c == 'x' or d != 0"], tiers={"quick": strategy})
    expansion = expand(spec)
    rows = [tuple(case.values.values()) for case in expansion.cases]
    every = [tuple(case.values.values()) for case in expand(spec, "full").cases]
    assert held(rows, strength) == held(every, strength)
    assert expansion.count() == len(rows) < len(every)


@pytest.mark.parametrize("strategy", ["4-wise", "5-wise", "99-wise"])
def test_t_wise_over_all_axes_or_more_is_the_product(strategy):
    spec = spec_from(AXES, ["a <= 2 or b"], tiers={"quick": strategy})
    assert ids(expand(spec)) == ids(expand(spec, "full"))


def test_a_sample_satisfies_the_constraints_and_is_a_prefix_of_larger_ones():
    def sample(size, seed=0):
        spec = spec_from(
            AXES, ["a <= 2 or b"], tiers={"quick": {"strategy": "sample", "size": size}}
        )
        return ids(expand(spec, seed=seed))

    every = set(ids(expand(spec_from(AXES, ["a <= 2 or b"]), "full")))
    assert len(sample(7)) == len(set(sample(7))) == 7
    assert set(sample(7)) < every
    assert sample(12)[:7] == sample(7)
    assert sample(7) == sample(7)
    assert sample(7) != sample(7, seed=1)
    assert set(sample(1000)) == every


@pytest.mark.parametrize("strategy", ["sample", "first"])
def test_more_than_there_is_of_a_large_matrix_is_not_made_at_once(strategy):
    axes = {name: list(range(10)) for name in "abcdefghijkl"}
    spec = spec_from(axes, tiers={"quick": {"strategy": strategy, "size": 2**63}})
    expansion = expand(spec)
    assert expansion.count() == 10**12
    assert len(set(islice(ids_of(expansion), 5))) == 5
    assert set(map(len, values_of(expansion.some(3)))) == {12}


def test_the_tier_each_has_every_value_of_every_axis_in_few_cases():
    cases = list(expand(spec_from(AXES, ["a <= 2 or b"]), "each"))
    for name, values in AXES.items():
        assert {case[name] for case in cases} == set(values)
    assert len(cases) <= 1 + max(map(len, AXES.values()))


def test_a_sample_meets_every_case_alike():
    spec = spec_from(
        {"a": [0, 1, 2], "b": [0, 1, 2]},
        ["a == 0 or b == 0"],
        tiers={"quick": {"strategy": "sample", "size": 1}},
    )
    drawn = [ids(expand(spec, seed=seed))[0] for seed in range(500)]
    counts = {each: drawn.count(each) for each in set(drawn)}
    assert len(counts) == 5
    assert min(counts.values()) > 60  # of 100 expected


def test_the_seed_of_the_tier_is_what_expand_uses_by_default():
    def tier(seed):
        return {"quick": {"strategy": "sample", "size": 5, "seed": seed}}

    assert ids(expand(spec_from(AXES, tiers=tier(3)))) == ids(
        expand(spec_from(AXES, tiers=tier(0)), seed=3)
    )


def test_first_takes_the_first_rows_that_satisfy_the_constraints():
    spec = spec_from(AXES, ["a > 1"], tiers={"quick": "first"})
    assert values(expand(spec)) == [{"a": 2, "b": False, "c": "x", "d": 0}]
    spec = spec_from(AXES, ["a > 1"], tiers={"quick": {"strategy": "first", "size": 5}})
    assert ids(expand(spec)) == ids(expand(spec, "full"))[:5]


def test_a_tier_can_have_other_values_for_an_axis():
    spec = spec_from(AXES, tiers={"full": {"strategy": "product", "axes": {"a": [9], "b": [True]}}})
    assert [(each["a"], each["b"]) for each in values(expand(spec, "full"))] == [(9, True)] * 6
    assert {each["a"] for each in values(expand(spec, "quick"))} == {1, 2, 3}


def test_a_tier_that_does_not_exist_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown tier 'quik' .*did you mean 'quick'"):
        expand(spec_from(AXES), "quik")


# What constraints remove -----------------------------------------------------------------------


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_each_constraint_is_counted_alone_over_the_whole_product(data):
    axes = {
        name: list(range(data.draw(st.integers(1, 4), label=name)))
        for name in data.draw(
            st.lists(st.sampled_from("abcde"), min_size=2, max_size=4, unique=True)
        )
    }
    names = sorted(axes)
    texts = data.draw(
        st.lists(
            st.builds(
                "{} {} {}".format,
                st.sampled_from(names),
                st.sampled_from(["<=", "!=", "<"]),
                st.one_of(st.sampled_from(names), st.integers(0, 3).map(str)),
            ),
            max_size=3,
            unique=True,
        )
    )
    spec = spec_from(axes, texts)
    combinations = [dict(zip(axes, each, strict=True)) for each in product(*axes.values())]
    kept = [
        each
        for each in combinations
        if all(constraint.expression.evaluate(each) for constraint in spec.constraints)
    ]
    if not kept:
        with pytest.raises(SpecError, match="no case is left"):
            expand(spec, "full")
        return
    expansion = expand(spec, "full")
    assert values(expansion) == kept
    assert expansion.count() == len(kept)
    assert {constraint.text: count for constraint, count in expansion.removed.items()} == {
        constraint.text: sum(not constraint.expression.evaluate(each) for each in combinations)
        for constraint in spec.constraints
    }
    for tier in ("quick", "nightly"):
        assert expand(spec, tier).removed == expansion.removed


def test_no_case_left_is_an_error_with_the_count_of_each_constraint():
    spec = spec_of(
        """
        axes: {a: [1, 2, 3], b: [1, 2]}
        constraints:
          - {require: a < 3, because: the third is broken}
          - {require: a * b > 4, because: small ones are boring}
        """
    )
    message = (
        r"tried.yaml:7:3: no case is left in the tier quick: of 6 combinations "
        r"'a < 3' \(the third is broken\) removes 2; "
        r"'a \* b > 4' \(small ones are boring\) removes 5"
    )
    with pytest.raises(SpecError, match=message):
        expand(spec)


def test_a_constraint_without_a_value_for_a_tier_is_a_located_error():
    spec = spec_of(
        """
        axes: {window: [1, 2], a: [1]}
        constraints:
          - {require: window < 3, because: small}
        tiers:
          quick: {strategy: product, axes: {window: [1, none]}}
        """
    )
    with pytest.raises(SpecError, match=r"tried.yaml:7:\d+: 'window < 3' has no .*window=none"):
        expand(spec)


# Written cases --------------------------------------------------------------------------------

WRITTEN = {
    "regressions": [{"a": 3, "d": 2}, {"a": 77}],
    "extra_cases": [{"a": 2}, {"a": 88, "c": "x"}],
}


def test_regressions_come_first_then_extra_cases_and_nothing_twice():
    spec = spec_from(AXES, **WRITTEN)
    for tier in ("quick", "nightly", "full"):
        expansion = expand(spec, tier)
        cases = list(expansion.cases)
        assert [case.origin for case in cases[:5]] == ["regression"] * 2 + ["extra"] * 2 + ["tier"]
        assert [case["a"] for case in cases[:4]] == [3, 77, 2, 88]
        assert dict(cases[0].values) == {"a": 3, "b": False, "c": "x", "d": 2}
        assert len({case.key for case in cases}) == len(cases) == expansion.count()
    assert expansion.count() == 36 + 2


def test_a_case_listed_as_regression_and_as_extra_runs_once_as_regression():
    spec = spec_from(AXES, regressions=[{"a": 2}], extra_cases=[{"a": 2, "b": False}])
    cases = list(expand(spec, "full").cases)
    assert [case.origin for case in cases[:2]] == ["regression", "tier"]
    assert len(cases) == 36


def test_a_listed_case_that_violates_a_constraint_is_a_located_error():
    spec = spec_of(
        """
        axes: {a: [1, 2, 3], b: [1, 2]}
        constraints:
          - {require: a < 3, because: the third is broken}
        regressions:
          - {a: 1}
          - {a: 3}
        """
    )
    message = r"tried.yaml:10:5: the constraint 'a < 3' excludes this case \(the third is broken\)"
    with pytest.raises(SpecError, match=message):
        expand(spec)


def test_two_listed_cases_with_one_id_are_an_error_that_names_both():
    spec = spec_from(AXES, regressions=[{"a": "7"}], extra_cases=[{"a": 7}])
    with pytest.raises(SpecError, match=r"two cases have the id a=7-.*'a': '7'.*'a': 7,"):
        expand(spec)


def test_a_listed_case_with_the_id_of_another_case_is_an_error_that_names_both():
    spec = spec_from(AXES, extra_cases=[{"a": "2"}])
    with pytest.raises(SpecError, match=r"two cases have the id a=2-.*'a': '2'.*'a': 2,"):
        expand(spec, "full")


# Identity and laziness ------------------------------------------------------------------------


@given(st.permutations(list(AXES)), st.permutations(["a <= 2 or b", "c == 'x' or d != 0"]))
@settings(deadline=None, max_examples=20)
def test_order_of_axes_and_constraints_changes_neither_ids_nor_selection(order, constraints):
    tiers = {"some": {"strategy": "sample", "size": 9}}
    plain = spec_from(AXES, ["a <= 2 or b", "c == 'x' or d != 0"], tiers=tiers)
    other = spec_from({name: AXES[name] for name in order}, constraints, tiers=tiers)
    for tier in ("quick", "nightly", "some"):
        assert ids(expand(other, tier)) == ids(expand(plain, tier))
    assert set(ids(expand(other, "full"))) == set(ids(expand(plain, "full")))
    assert {case.seed for case in expand(other)} == {case.seed for case in expand(plain)}


def test_expanding_twice_gives_the_same_cases_and_cases_can_be_asked_for_again():
    spec = spec_from(AXES, ["c == 'x' or d != 0"], **WRITTEN)
    for tier in ("quick", "nightly", "full"):
        expansion = expand(spec, tier)
        assert ids(expansion) == ids(expansion) == ids(expand(spec, tier))
        assert [case.id for case in expansion] == ids(expansion)


def test_ids_are_unique_and_readable():
    found = ids(expand(spec_from(AXES), "full"))
    assert found[0] == "a=1-b=false-c=x-d=0"
    assert len(set(found)) == len(found)


def test_holds_knows_the_cases_without_listing_them():
    spec = spec_from(AXES, ["c == 'x' or d != 0"], **WRITTEN)
    full = list(expand(spec, "full").cases)
    for tier in ("quick", "nightly", "full"):
        expansion = expand(spec, tier)
        inside = set(expansion.cases)
        assert [expansion.holds(case) for case in full] == [case in inside for case in full]


def test_adding_a_value_adds_cases_and_keeps_the_others():
    more = {**AXES, "a": [*AXES["a"], 4]}
    before, after = ids(expand(spec_from(AXES), "full")), ids(expand(spec_from(more), "full"))
    assert set(before) < set(after)
    assert len(after) == len(before) * 4 // 3


def test_a_product_too_large_to_walk_is_counted_and_begun_at_once():
    axes = {f"axis_{letter}": list(range(50)) for letter in "abcdefghij"}
    spec = spec_from(axes, ["axis_a < axis_j", "axis_b + axis_c != 7"])
    expansion = expand(spec, "full")
    assert expansion.count() == 1225 * 2492 * 50**6
    assert list(expansion.removed.values()) == [1275 * 50**8, 8 * 50**8]
    assert len(list(islice(expansion.cases, 100))) == 100
