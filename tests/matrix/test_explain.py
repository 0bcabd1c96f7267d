"""Cases by id, and why a tier has them or not."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_text import spec_from, spec_of

from tlmatrix.fuzz.generation import generate_cases
from tlmatrix.fuzz.strategies import cases
from tlmatrix.matrix import Case, CaseNotFoundError, expand, explain, find_case
from tlmatrix.spec.loader import load_spec
from tlmatrix.spec.values import label

SPEC = spec_of(
    """
    axes:
      causal: [false, true]
      head_dim: [64, 96, 128]
      seqlens:
        - {q: [17, 64, 1], k: same}
        - {q: [0, 5], k: [7, 0]}
      scale: [1.0e-5, -1, none]
      window: [none, 64]
    constraints:
      - {require: window is none or causal, because: a window is causal}
    tiers:
      quick: {strategy: first}
      full: {strategy: product, axes: {head_dim: [64, 256]}}
    extra_cases:
      - {head_dim: 40}
    known_bugs:
      - {when: head_dim == 256, issue: "#1", expires: 2099-01-01}
      - {when: head_dim == 256 and arch == 'sm_80', issue: "#2", expires: 2099-01-01}
      - {when: head_dim == 64, issue: "#3", expires: 2099-01-01}
    invalid_inputs:
      head_dim: {head_dim: 0}
    """
)


def test_every_id_of_every_tier_leads_back_to_its_case():
    for tier in ("quick", "nightly", "full"):
        for case in expand(SPEC, tier):
            assert find_case(SPEC, case.id) == case
            assert find_case(SPEC, case.id, tier) == case


def test_a_case_that_no_tier_holds_is_found_by_its_values():
    values = {
        "causal": False,
        "head_dim": 256,
        "scale": -1,
        "seqlens": {"q": [0, 5], "k": [7, 0]},
        "window": 64,
    }
    assert dict(find_case(SPEC, Case("tried", values).id).values) == values


def test_the_order_in_an_id_does_not_matter():
    case = next(expand(SPEC, "full").cases)
    parts = [f"{name}={label(value)}" for name, value in case.values.items()]
    assert find_case(SPEC, "-".join(reversed(parts))) == case


def test_finds_invalid_inputs():
    found = find_case(
        SPEC, "causal=false-head_dim=0-scale=1e-05-seqlens=q17.64.1_ksame-window=none"
    )
    assert (found["head_dim"], found.origin) == (0, "invalid")


GOOD = "causal=false-head_dim=64-scale=-1-seqlens=q17.64.1_ksame-window=none"


@pytest.mark.parametrize(
    ("case_id", "message"),
    [
        (GOOD.replace("head_dim=", "haed_dim="), "unknown axis 'haed_dim'.*mean 'head_dim'"),
        (GOOD.replace("=false", "=flase"), "causal has no value 'flase'; did you mean 'false'"),
        (GOOD.replace("=64-", "=63-"), "head_dim has no value '63'.*64, 96, 128"),
        (GOOD.replace("-scale=-1", ""), "says nothing of scale"),
        (GOOD + "-causal=true", "gives causal twice"),
        ("", "is no case id"),
        ("nonsense", "is no case id"),
        ("x" + GOOD, "unknown axis 'xcausal'.*mean 'causal'"),
        ("-" + GOOD[7:], "is no case id"),
    ],
)
def test_an_id_that_stands_for_no_case_is_an_error_with_the_nearest(case_id, message):
    with pytest.raises(CaseNotFoundError, match=message):
        find_case(SPEC, case_id)


def test_a_value_of_another_tier_is_not_a_value_of_this_one():
    with pytest.raises(CaseNotFoundError, match="no value '96'"):
        find_case(SPEC, GOOD.replace("=64-", "=96-"), "full")
    with pytest.raises(ValueError, match="unknown tier 'ful'"):
        find_case(SPEC, GOOD, "ful")


def test_a_label_of_two_values_asks_for_the_tier():
    tiers = {"full": {"strategy": "product", "axes": {"a": ["1"]}}}
    spec = spec_from({"a": [1, 2], "b": [1, 2]}, tiers=tiers)
    with pytest.raises(CaseNotFoundError, match='a=1 could be 1 or "1"'):
        find_case(spec, "a=1-b=1")
    assert find_case(spec, "a=1-b=1", "full")["a"] == "1"
    assert find_case(spec, "a=1-b=1", "quick")["a"] == 1


plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(
            lambda name: name not in {"none", "null", "true", "false", "and", "or", "not", "in",
                                      "is", "if", "else", "for", "min", "max", "abs", "len",
                                      "arch"}
        ),
        st.lists(plain, min_size=1, max_size=3, unique_by=label),
        min_size=1,
        max_size=4,
    )
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_an_id_can_be_read_in_one_way_only(axes):
    from tlmatrix.matrix.explain import _parsed

    values = {name: each[0] for name, each in axes.items()}
    assert _parsed(Case("tried", values).id) == {
        name: label(value) for name, value in values.items()
    }


def explained(**values):
    return explain(SPEC, {"head_dim": 64, **values})


def test_a_case_that_violates_a_constraint_is_in_no_tier_with_the_reason():
    found = explained(window=64)
    assert [constraint.because for constraint in found.removed_by] == ["a window is causal"]
    assert {each.included for each in found.tiers.values()} == {False}
    assert "it violates the constraint window is none or causal (a window is causal)" in (
        found.tiers["full"].reason
    )


def test_a_tier_reports_whether_it_selects_a_case_and_why_not():
    first, other, wide = explained(), explained(causal=True), explained(head_dim=96)
    assert first.tiers["quick"].included
    assert first.tiers["full"].reason == "product selects it"
    assert not other.tiers["quick"].included
    assert other.tiers["quick"].reason == "first does not select it"
    assert other.tiers["full"].included
    assert wide.tiers["full"].reason == "the tier has no head_dim=96, only 64, 256"
    assert not wide.tiers["full"].included


def test_a_t_wise_tier_agrees_with_its_expansion():
    picked = set(expand(SPEC, "nightly"))
    for case in expand(SPEC, "full"):
        if case["head_dim"] == 64:
            assert explain(SPEC, case).tiers["nightly"].included is (case in picked)


def test_a_listed_case_is_in_every_tier():
    found = explained(head_dim=40)
    assert {each.included for each in found.tiers.values()} == {True}
    assert found.tiers["quick"].reason == "the spec lists it (extra)"


def test_known_bugs_that_depend_on_the_backend_are_undecided_without_it():
    found = explained(head_dim=256)
    assert [bug.issue for bug in found.known_bugs] == ["#1"]
    assert [bug.issue for bug in found.undecided] == ["#2"]
    found = explain(SPEC, found.case, environment={"arch": "sm_80"})
    assert [bug.issue for bug in found.known_bugs] == ["#1", "#2"]
    assert found.undecided == ()


def test_an_id_and_its_values_are_explained_alike():
    assert explain(SPEC, GOOD) == explain(SPEC, find_case(SPEC, GOOD))
    assert explain(SPEC, GOOD).seed == find_case(SPEC, GOOD).seed
    with pytest.raises(CaseNotFoundError, match="mean 'causal'"):
        explain(SPEC, {"casual": True})


@pytest.mark.parametrize("label", ["q3.4", "q3.4_k", "q3_k5.x", "3.4_k5", "q3.4_k5.6_z1"])
def test_a_label_of_no_batch_is_no_case(label):
    spec = load_spec(Path(__file__).parents[2] / "specs/gqa_varlen.yaml")
    (case,) = generate_cases(cases(spec, "quick"), count=1, first=5)
    parts = [part for part in case.id.split("-") if not part.startswith("seqlens=")]
    with pytest.raises(CaseNotFoundError, match="seqlens has no value"):
        find_case(spec, "-".join([*parts, f"seqlens={label}"]))
