"""Fuzzing of the framework: any spec gives cases or located errors, quickly.

`make fuzz-framework` does so with 5,000 specs; here a few.
"""

import os
import signal
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from generated_specs import made_text, scratched_text

from tlmatrix.fuzz.generation import generate_cases
from tlmatrix.fuzz.strategies import cases
from tlmatrix.matrix.listed_cases import broken_constraints
from tlmatrix.run.plan import plan
from tlmatrix.spec import SpecError, parse_spec

SPECS = int(os.environ.get("TLMATRIX_FRAMEWORK_SPECS", "24"))
FIRST = int(os.environ.get("TLMATRIX_FRAMEWORK_FIRST", "0"))
SECONDS = 20
"""Of processor time, for one spec."""


class TooLongError(Exception):
    """A spec took longer than its time."""


@contextmanager
def limited(seconds):
    def stop(*_):
        raise TooLongError(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor: others may use the machine
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(text):
    """What becomes of a spec: "cases", or "errors", each at a place of the file."""
    return located(issues_of(text), text)


def located(issues, text):
    lines = text.count("\n") + text.count("\r") + 1
    for issue in issues:
        assert issue.path == Path("made.yaml")
        assert 1 <= issue.line <= lines
        assert issue.column >= 1
        assert issue.message
    return "errors" if issues else "cases"


def issues_of(text):
    """What is wrong with a spec; where nothing is, there are cases, and others can be drawn."""
    try:
        spec = parse_spec(text, "made.yaml")
        for tier in spec.tiers:
            assert list(islice(plan(spec, tier).cases(), 20))
        for case in generate_cases(cases(spec, "quick"), count=3, first=1):
            assert not broken_constraints(spec, case)
    except SpecError as error:
        return error.issues
    return ()


@pytest.mark.timeout(300 + SPECS)
def test_any_spec_gives_cases_or_located_errors(tmp_path, monkeypatch):
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path))
    found = Counter()
    for number in range(FIRST, FIRST + SPECS):
        text = made_text(number)
        try:
            with limited(SECONDS):
                found[outcome(text)] += 1
        except Exception as error:
            error.add_note(f"made_text({number}):\n{text}")
            raise
    assert found["cases"] > SPECS // 10
    assert found["errors"] > SPECS // 10


def test_scratched_text_loads_or_has_located_errors():
    found = Counter()
    for number in range(400):
        text = scratched_text(number)
        try:
            parse_spec(text, "made.yaml")
        except SpecError as error:
            found[located(error.issues, text)] += 1
        else:
            found["cases"] += 1
    assert min(found["cases"], found["errors"]) > 10
