import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_matrices import all_rows, held, spaces
from spec_text import spec_from

from tlmatrix.matrix import expansion
from tlmatrix.matrix.covering import covering_rows
from tlmatrix.matrix.shared_kernels import compile_classes
from tlmatrix.matrix.space import Space
from tlmatrix.problem import family_for
from tlmatrix.spec import load_spec
from tlmatrix.spec.values import canonical

AXES = {
    "dtype": ["float16", "bfloat16"],
    "head_dim": [32, 64, 96, 128],
    "window": [None, 1, 63, 128],
    "seqlen_q": [1, 16, 17, 64, 65],
    "seqlen_k": [1, 16, 17, 64, 65],
}
COMPILED = ["dtype", "head_dim", "window is not none"]


def expand(spec):
    return expansion.expand(spec, compile_key=partial(family_for(spec).compile_key, spec))


@given(spaces(), st.integers(1, 3), st.data())
@settings(deadline=None, max_examples=60)
def test_every_feasible_tuple_is_covered_whatever_decides_the_kernels(space, strength, data):
    named = data.draw(st.lists(st.sampled_from(space.names), unique=True, max_size=3))
    coarse = data.draw(st.booleans())

    def key(values):
        return tuple(values[name] // 2 if coarse else values[name] for name in named)

    classes = compile_classes(space, key, [space.values([0] * len(space.names))])
    rows, proof = covering_rows(space, strength, 0, classes)
    strength = min(strength, len(space.sizes))
    assert proof.holds
    assert held(rows, strength) == held(all_rows(space), strength)


def test_as_few_kernels_as_the_tuples_over_compile_axes_need():
    spec = spec_from(AXES, compile_axes=COMPILED)
    cases = list(expand(spec))
    compiled = {(case["dtype"], case["head_dim"], case["window"] is None) for case in cases}
    assert len(compiled) == 8  # the pairs of dtype and head_dim
    plain = spec_from(AXES)
    assert expand(plain).proof.feasible == expand(spec).proof.feasible
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
