"""Which of the checks that run the entry again a case gets: all, one in turn, or those named."""

from collections import Counter

import pytest
from attention_world import FakeSpec, attention, flash

from tlmatrix.check import judge
from tlmatrix.check.rerun_checks import RERUN_CHECKS
from tlmatrix.matrix.case import Case
from tlmatrix.problem.model import Relation
from tlmatrix.spec.model.spec import Tolerance

CHECKS = ("numeric", "gradients", *RERUN_CHECKS)
NAMES = {
    "isolation": ("isolation_sequence", "isolation_head"),
    "poison": ("poison_neighbours",),
    "repeat": ("repeat",),
    "relations": ("batch_split", "keys_permuted"),
}
EVERY = ("determinism", *(name for names in NAMES.values() for name in names))


def related(kind, names=NAMES):
    for name in names.get(kind, ()):
        problem = attention(seed=1 + len(name))
        yield Relation(name, kind, (problem,), lambda _: {}, lambda _: {})


class Entry:
    """A correct kernel that counts its calls; from call `breaks` on it is wrong."""

    def __init__(self, breaks=1000):
        self.calls = 0
        self.breaks = breaks

    def __call__(self, problem):
        self.calls += 1
        results = flash(problem)
        if self.calls >= self.breaks:
            results["out"] = results["out"] + 1
        return results


def judged(reruns, *, number=0, entry=None, checks=CHECKS, names=NAMES):
    """The names of what was made, the calls of the entry, and the findings."""
    made = []
    entry = entry or Entry()
    found = judge(
        FakeSpec(Tolerance()),
        Case("attention", {"number": number}),
        attention(relations=lambda kind: related(kind, names)),
        entry,
        checks=checks,
        arch="interpreter",
        deterministic=True,
        reruns=reruns,
        on_check=made.append,
    )
    return made, entry.calls, found


def test_a_case_of_a_tier_gets_all_of_them_in_order():
    made, calls, found = judged("all")
    assert made == list(EVERY)
    assert calls == 1 + 2 + 6
    assert not found


def test_in_rotation_each_example_gets_one_and_every_one_has_its_turn():
    turns = Counter()
    for number in range(80):
        made, calls, found = judged("rotate", number=number)
        assert len(made) == 1
        assert calls == 1 + 1
        assert not found
        turns[made[0]] += 1
    assert set(turns) == set(EVERY)
    checks = {
        "determinism": turns["determinism"],
        **{kind: sum(turns[name] for name in names) for kind, names in NAMES.items()},
    }
    assert min(checks.values()) >= 80 / 5 / 3


def test_an_example_gets_the_same_one_whenever_it_is_run():
    assert all(
        judged("rotate", number=number)[0] == judged("rotate", number=number)[0]
        for number in range(5)
    )


def test_a_check_with_nothing_to_run_passes_its_turn_on():
    turns = {
        judged("rotate", number=number, names={"repeat": ("repeat",)})[0][0] for number in range(20)
    }
    assert turns == {"determinism", "repeat"}


@pytest.mark.parametrize("number", range(8))
def test_what_the_spec_does_not_check_has_no_turn(number):
    made, _, _ = judged("rotate", number=number, checks=("numeric", "poison"))
    assert made == ["poison_neighbours"]
    assert judged("rotate", number=number, checks=("numeric", "gradients"))[:2] == ([], 1)


def test_checks_that_are_named_are_made_whole_and_no_other():
    assert judged({"isolation"})[0] == ["isolation_sequence", "isolation_head"]
    assert judged({"relations", "determinism"})[0] == [
        "determinism", "batch_split", "keys_permuted",
    ]  # fmt: skip
    assert judged(set())[:2] == ([], 1)


def test_what_the_turn_finds_is_a_finding():
    number = next(n for n in range(50) if judged("rotate", number=n)[0] == ["determinism"])
    _, _, found = judged("rotate", number=number, entry=Entry(breaks=2))
    assert [finding.check for finding in found] == ["determinism"]


def test_after_wrong_numbers_the_turn_goes_to_a_check_that_may_name_the_cause():
    turns = set()
    for number in range(30):
        made, _, found = judged("rotate", number=number, entry=Entry(breaks=1))
        assert found[0].check == "numeric"
        assert "not run: repeat and relations" in found[0].detail
        turns.update(made)
    assert turns == {"determinism", *NAMES["isolation"], *NAMES["poison"]}
