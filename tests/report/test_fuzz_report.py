"""The progress of `tlmatrix fuzz`: examples, faults, and the time left."""

import io

import pytest
from rich.console import Console

from tlmatrix.report import fuzz
from tlmatrix.report.fuzz import FuzzReporter
from tlmatrix.run import CaseResult, Status


@pytest.fixture
def clock(monkeypatch):
    """The time that the report reads, a list of one number."""
    now = [100.0]
    monkeypatch.setattr(fuzz.time, "monotonic", lambda: now[0])
    return now


def _progress(reporter, clock, *, examples, seconds, path="a.yaml"):
    """Run examples of `seconds` each, one after the other."""
    for number in range(examples):
        clock[0] += seconds
        reporter.ended(CaseResult("a", path, f"{number}", status=Status.PASSED, seconds=seconds))


def test_time_left_follows_from_the_examples_that_ended(clock):
    out = io.StringIO()
    reporter = FuzzReporter(Console(file=out, width=100), {"a.yaml": 100})
    reporter.begin("1 spec")
    _progress(reporter, clock, examples=11, seconds=1.0)
    assert "10 examples  10 s  90 s left" in out.getvalue()


def test_time_left_counts_slow_specs_apart(clock):
    out = io.StringIO()
    reporter = FuzzReporter(Console(file=out, width=100), {"a.yaml": 10, "b.yaml": 10})
    reporter.begin("2 specs")
    _progress(reporter, clock, examples=9, seconds=0.1)
    _progress(reporter, clock, examples=5, seconds=2.0, path="b.yaml")
    # One example of a.yaml is left, and five of b.yaml.
    assert "14 examples  11 s  10 s left" in out.getvalue()


def test_time_left_of_a_time_limit_is_its_rest(clock):
    out = io.StringIO()
    reporter = FuzzReporter(Console(file=out, width=100), None, 60.0)
    reporter.begin("1 spec, 1 minutes")
    _progress(reporter, clock, examples=2, seconds=6.0)
    assert "2 examples  12 s  48 s left" in out.getvalue()
