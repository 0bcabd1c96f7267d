"""The registry of checks, and their selection: all, one in rotation, or named ones."""

from collections import Counter

import pytest
from packed_attention import FakeSpec, attention, flash

from tlmatrix.check import judge
from tlmatrix.check.finding import Finding
from tlmatrix.check.registry import CHECKS, Check
from tlmatrix.matrix.listed_cases import Case
from tlmatrix.problem.model import Relation
from tlmatrix.spec.model.fields import CHECKS as NAMED
from tlmatrix.spec.model.spec import Tolerance

ALL = ("numeric", "gradients", *CHECKS)
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

    def __init__(self, breaks=1000, function=flash):
        self.calls = 0
        self.breaks = breaks
        self.function = function

    def __call__(self, problem):
        self.calls += 1
        results = self.function(problem)
        if self.calls >= self.breaks:
            results["out"] = results["out"] + 1
        return results


def judged(reruns, *, number=0, entry=None, checks=ALL, names=NAMES):
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


def test_tier_cases_get_all_checks_in_order():
    made, calls, found = judged("all")
    assert made == list(EVERY)
    assert calls == 1 + 2 + 6
    assert not found


def test_rotation_gives_each_case_one_check():
    turns = Counter()
    for number in range(80):
        made, calls, found = judged("rotate", number=number)
        assert len(made) == 1
        # A call through autograd may need another to be compared with.
        assert calls == 1 + 1 or (calls == 1 + 2 and made == ["determinism"])
        assert not found
        turns[made[0]] += 1
    assert set(turns) == set(EVERY)
    checks = {
        "determinism": turns["determinism"],
        **{kind: sum(turns[name] for name in names) for kind, names in NAMES.items()},
    }
    assert min(checks.values()) >= 80 / 5 / 3


def test_rotation_is_deterministic():
    assert all(
        judged("rotate", number=number)[0] == judged("rotate", number=number)[0]
        for number in range(5)
    )


def test_rotation_skips_checks_without_relations():
    turns = {
        judged("rotate", number=number, names={"repeat": ("repeat",)})[0][0] for number in range(20)
    }
    assert turns == {"determinism", "repeat"}


@pytest.mark.parametrize("number", range(8))
def test_rotation_uses_only_checks_of_the_spec(number):
    made, _, _ = judged("rotate", number=number, checks=("numeric", "poison"))
    assert made == ["poison_neighbours"]
    assert judged("rotate", number=number, checks=("numeric", "gradients"))[:2] == ([], 1)


def test_only_named_checks_run():
    assert judged({"isolation"})[0] == ["isolation_sequence", "isolation_head"]
    assert judged({"relations", "determinism"})[0] == [
        "determinism", "batch_split", "keys_permuted",
    ]  # fmt: skip
    assert judged(set())[:2] == ([], 1)


def test_rotation_reports_findings():
    number = next(n for n in range(50) if judged("rotate", number=n)[0] == ["determinism"])
    _, _, found = judged("rotate", number=number, entry=Entry(breaks=2))
    assert [finding.check for finding in found] == ["determinism"]


def test_rotation_after_wrong_values_skips_redundant_checks():
    turns = set()
    for number in range(30):
        made, _, found = judged("rotate", number=number, entry=Entry(breaks=1))
        assert found[0].check == "numeric"
        assert "not run: repeat and relations" in found[0].detail
        turns.update(made)
    assert turns == {"determinism", *NAMES["isolation"], *NAMES["poison"]}


def test_the_registry_has_the_checks_that_specs_name():
    of_the_first_call = {"numeric", "gradients", "poison", "guards", "sanitizers"}
    assert set(NAMED) == of_the_first_call | set(CHECKS)


class Contiguous(Check):
    """A check of a user: results are contiguous."""

    name = "contiguous"

    def findings(self, run):
        return [
            Finding(self.name, f"{name} has strides {got.stride()}", tensor=name)
            for name, got in run.results.items()
            if not got.is_contiguous()
        ]


@pytest.mark.parametrize("reruns", ["all", "rotate"])
def test_a_check_from_outside(monkeypatch, reruns):
    monkeypatch.setitem(CHECKS, "contiguous", Contiguous())

    def transposed(problem):
        results = flash(problem)
        return {**results, "out": results["out"].transpose(0, 1).contiguous().transpose(0, 1)}

    for entry, wrong in ((flash, []), (transposed, ["out"])):
        counted = Entry(function=entry)
        _, _, found = judged(reruns, entry=counted, checks=("numeric", "contiguous"))
        assert [finding.tensor for finding in found] == wrong
