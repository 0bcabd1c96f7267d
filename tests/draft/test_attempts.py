"""In which sizes a recorded case is tried, and how long."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tlmatrix.check.finding import Finding
from tlmatrix.draft.attempts import Attempts, Limit, recorded_case, recorded_sizes

OPERATOR = """
def total(x):
    return x.sum((1, 2, 3))
"""


def test_a_recorded_case_is_tried_with_smaller_sizes_of_the_same_steps(drafts):
    recorded = {"m": 4001, "n": 576, "k": 8192, "small": 200, "flag": True}
    first, kept, second, last = recorded_sizes(replace(drafts(), recorded=recorded))
    assert last == recorded
    # Code may take one odd size alone.
    assert kept == {**recorded, "k": 128}
    for values in (first, second):
        assert values["m"] % 2 == 1
        assert math.gcd(values["n"], 128) == 64
        assert values["k"] % 128 == 0
        assert max(values["m"], values["n"], values["k"]) <= 512
        assert len({*values.values()}) == len(values)
        assert (values["small"], values["flag"]) == (200, True)


def test_a_recorded_case_is_tried_with_few_of_what_is_counted(drafts):
    recorded = {"batch": 132, "heads": 16, "kv_heads": 4, "n": 64}
    few, batch, last = recorded_sizes(replace(drafts(), recorded=recorded))
    assert few == {"batch": 2, "heads": 2, "kv_heads": 4, "n": 64}
    assert batch == {**recorded, "batch": 2}
    assert last == recorded
    large = dict.fromkeys("mnk", 8192)
    assert all(
        max(each.values()) <= 512 * 3 for each in recorded_sizes(replace(drafts(), recorded=large))
    )


def test_time_that_other_programs_take_counts_a_quarter(monkeypatch):
    passed = [100.0, 5.0]
    monkeypatch.setattr("tlmatrix.draft.attempts.time.monotonic", lambda: passed[0])
    monkeypatch.setattr("tlmatrix.draft.attempts.time.process_time", lambda: passed[1])
    limit = Limit(10)
    for passed[:], left in (([104, 5], 9), ([104, 8], 7), ([142, 8], -0.5), ([104, 16], -1)):
        assert limit.left == left


@pytest.mark.parametrize(
    ("check", "title", "seconds", "cases"),
    [
        ("numeric", "y: 3 elements are wrong", 1, 3),
        ("sanitizers", "races: s[0] is written by two threads", 1, 1),
        ("reference", "raised RuntimeError: expected scalar type Double but found Float", 1, 1),
        ("numeric", "y: 3 elements are wrong", 4, 2),
    ],
)
def test_other_sizes_are_tried_if_they_may_change_what_is_found_in_time(
    check, title, seconds, cases, drafts
):
    tried = []

    def case(draft, _):
        tried.append(draft.axes["rows"])
        finding = SimpleNamespace(check=check, title=title)
        return SimpleNamespace(status="failed", findings=[finding], seconds=seconds)

    attempts = SimpleNamespace(case=case, limit=SimpleNamespace(left=30))
    recorded_case(replace(drafts(), recorded={"rows": 4096}), attempts)
    assert len(tried) == cases
    # The first ends with the time.
    attempts.limit.left = -1
    recorded_case(replace(drafts(), recorded={"rows": 4096}), attempts)
    assert len(tried) == cases + 1


def test_a_case_of_a_draft_runs_once(drafts, tmp_path):
    ran = []

    def run(_, case, time_limit, explained):
        assert not explained  # a draft needs the title of a finding alone
        ran.append(case.values)
        return SimpleNamespace(status="passed", findings=(), message=f"{time_limit}")

    runner = SimpleNamespace(run=run)
    attempts = Attempts(tmp_path / "s.yaml", [tmp_path], runner, "each", Limit(math.inf))
    attempts.case(drafts(), {"values": "normal"})
    attempts.case(drafts(), {"values": "normal"})
    attempts.case(drafts(), {"values": "large"})
    attempts.case(replace(drafts(), bounded=True), {"values": "large"})
    assert [values["values"] for values in ran] == ["normal", "large", "large"]


def test_a_size_alone_is_as_recorded_if_smaller_ones_are_refused(drafts):
    tried = []

    def case(draft, _):
        sizes = {name: draft.axes[name][0] for name in "mnk"}
        tried.append(sizes)
        fine = sizes["n"] >= 4096 and sizes["m"] >= 256
        findings = [] if fine else [Finding("entry", "raises AssertionError", pattern="Assertion")]
        status = "passed" if fine else "error"
        return SimpleNamespace(status=status, findings=findings, seconds=1, values=sizes)

    attempts = SimpleNamespace(case=case, limit=SimpleNamespace(left=30))
    large = dict.fromkeys("mnk", 8192)
    result = recorded_case(replace(drafts(), recorded=large), attempts)
    assert result.values == {"m": 512, "n": 8192, "k": 512}
    assert large not in tried
