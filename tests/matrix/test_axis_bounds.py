"""Rules too large to enumerate: solved, and with the answers that enumeration gives."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from small_matrices import all_rows
from spec_text import spec_from

from tlmatrix.matrix import constraints, expand
from tlmatrix.matrix.bounds import bounds_of, may_hold
from tlmatrix.matrix.constraints import UNBOUND, Constraint
from tlmatrix.matrix.space import Space
from tlmatrix.run.plan import plan
from tlmatrix.spec import parse_spec
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.issues import SpecError

TILES = [1, 2, 4, 8, 16, 32, 64, 96, 128, 256]
_SIZES = (
    "block_m",
    "block_n",
    "block_k",
    "threads",
    "split_k",
    "groups",
    "swizzle",
    "vec",
    "lanes",
)
_FEW = ("num_stages", "cluster", "warps")
TWELVE = dict.fromkeys(_SIZES, tuple(TILES)) | dict.fromkeys(_FEW, tuple(range(1, 11)))
SHARED_MEMORY = (
    "(block_m*block_k + block_n*block_k)*2*num_stages <= 232448 and threads*warps <= 1024 "
    "and block_m*block_n <= threads*vec*64 and split_k*groups <= 512 and swizzle*cluster <= 64 "
    "and lanes < 100"
)
AXES = {
    "a": [0, 1, 2, 5],
    "b": [-3, 2, 7],
    "c": [None, 4, 64],
    "d": ["float16", "int8"],
    "e": [True, False],
    "f": [0.5, 2.0],
}

numbers = st.sampled_from(["a", "b", "c", "f", "0", "3", "2.5", "-1", "e"])
terms = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner).map(
            lambda each: f"({' '.join(each)})"
        ),
        st.tuples(st.sampled_from(["min", "max", "ceildiv"]), inner, inner).map(
            lambda each: f"{each[0]}({each[1]}, {each[2]})"
        ),
        inner.map(lambda each: f"abs({each})"),
        st.tuples(inner, st.sampled_from(["a < 2", "c is none", "e"]), inner).map(
            lambda each: f"({each[0]} if {each[1]} else {each[2]})"
        ),
    ),
    max_leaves=5,
)
conditions = st.recursive(
    st.one_of(
        st.tuples(terms, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), terms).map(" ".join),
        st.tuples(terms, terms, terms).map(lambda each: f"{each[0]} < {each[1]} <= {each[2]}"),
        st.sampled_from(["c is none", "c is not none", "d == 'int8'", "d in ['int8']", "e"]),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda each: f"({' '.join(each)})"
        ),
        inner.map(lambda each: f"not ({each})"),
        st.tuples(inner, inner, inner).map(lambda each: f"({each[0]} if {each[1]} else {each[2]})"),
        st.tuples(inner, inner).map(" and ".join),
    ),
    max_leaves=4,
)


def verdict(expression, values):
    """True or False, or None where the expression has no value."""
    try:
        return bool(expression.evaluate(values))
    except ExpressionError:
        return None


@settings(deadline=None)
@given(conditions, st.data())
def test_bounds_never_exclude_a_solution(text, data):
    expression = Expression(text)
    names = tuple(AXES)
    bounds = bounds_of(expression.tree, {name: at for at, name in enumerate(names)}, AXES)
    open_axes = data.draw(st.sets(st.sampled_from(range(len(names))), max_size=3))
    bound = [range(len(AXES[name])) for at, name in enumerate(names) if at not in open_axes]
    for some in product(*bound):
        chosen = iter(some)
        row = [UNBOUND if at in open_axes else next(chosen) for at in range(len(names))]
        if may_hold(bounds(row)):
            continue
        for rest in product(*(range(len(AXES[names[at]])) for at in sorted(open_axes))):
            full = list(row)
            for at, index in zip(sorted(open_axes), rest, strict=True):
                full[at] = index
            values = {name: AXES[name][index] for name, index in zip(names, full, strict=True)}
            assert verdict(expression, values) is not True


@settings(deadline=None)
@given(conditions)
@example("not ((a < a if a < c else c is not none))")  # a < c has no value for some c
@example("not ((a < a if a < (a / a) <= a else a < min(a,b)))")
def test_a_solved_space_is_the_enumerated_one(text):
    axes = {name: values for name, values in AXES.items() if name in Expression(text).names}
    expression = Expression(text)
    assume(axes)

    def allows(values):
        return verdict(expression, values) is True

    plain = Space(axes, [Constraint(tuple(axes), allows)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "_TABLE_LIMIT", 0)
        solved = Space(axes, [Constraint(tuple(axes), allows, expression.tree)])
    assert solved.has_large_constraints
    assert list(solved) == list(plain) == all_rows(plain)
    if all(
        verdict(expression, plain.values(row)) is not None
        for row in product(*map(range, plain.sizes))
    ):
        assert solved.count == plain.count
        assert solved.removed() == plain.removed()
        assert sorted(solved[at] for at in range(solved.count)) == all_rows(plain)


@pytest.mark.parametrize("text", ["(a if c is none else b) > 7", "(a > 5 if e else b > a + 7)"])
def test_a_conditional_has_the_bounds_of_its_branches(text):
    bounds = bounds_of(Expression(text).tree, {name: at for at, name in enumerate(AXES)}, AXES)
    assert not may_hold(bounds([UNBOUND] * len(AXES)))


def test_a_limit_over_twelve_axes_of_ten_values_is_solved_and_covered():
    spec = spec_from(TWELVE, [SHARED_MEMORY])
    start = time.process_time()
    expansion = expand(spec, "quick")
    assert time.process_time() - start < 4  # 1 s on an idle machine
    assert 100 <= expansion.count() < 400
    constraint = Expression(SHARED_MEMORY)
    assert all(constraint.evaluate(case.values) for case in expansion)
    assert list(expansion.removed.values()) == [843067282960]
    assert expand(spec, "full").count() == 10**12 - 843067282960


def test_an_uncountable_space_has_an_upper_bound():
    text = " + ".join(f"{left} * {right}" for left, right in zip("abcdef", "ghijkl", strict=True))
    axes = {name: [each * 7919 % 1009 for each in range(1, 11)] for name in "abcdefghijkl"}
    spec = spec_from(axes, [f"{text} <= 900000"])
    expansion = expand(spec, "full")
    assert not expansion.counted
    assert expansion.count() == 10**12
    assert list(expansion.removed.values()) == [None]
    assert len({case.id for case in expansion.some(5)}) == 5
    sample = expand(
        spec_from(axes, [f"{text} <= 900000"], tiers={"quick": {"strategy": "sample", "size": 9}})
    )
    assert sample.count() == 9


def test_more_cases_than_a_run_holds_are_refused_with_their_count():
    axes = {name: list(range(1, 11)) for name in "abcdefghijkl"}
    inputs = f"x: {{shape: [{', '.join(axes)}], dtype: float32}}"
    planned = plan(
        parse_spec(
            f"name: many\nproblem: {{inputs: {{{inputs}}}, outputs: [y], reference: m:f}}\n"
            f"entry: m:f\naxes: {axes}\n"
        ),
        "full",
    )
    with pytest.raises(SpecError, match=r"has 1,000,000,000,000 cases, and a run holds 2,000,000"):
        planned.refuse_too_many()
