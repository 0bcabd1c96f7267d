"""Every memory mutant is reported, once, by the right sanitizer, at the right line."""

import pytest
import sanitizer_mutants

from tlmatrix.interpreter import interpret


@pytest.mark.parametrize("mutant", sanitizer_mutants.MUTANTS, ids=lambda p: p.run.__name__)
def test_mutant_is_reported_at_its_line(mutant):
    with interpret(sanitize=True, **mutant.options) as run:
        mutant.run(True)
    named = [r for r in run.reports if r.sanitizer not in mutant.also]
    found = [(r.sanitizer, r.buffer, r.line) for r in named]
    assert found == [(mutant.sanitizer, mutant.buffer, mutant.line)], run.reports
    assert {r.line for r in run.reports} == {mutant.line}
    assert {r.file for r in run.reports} == {sanitizer_mutants.__file__}
    assert {r.kernel for r in run.reports} <= {"kernel", "main"}


@pytest.mark.parametrize("mutant", sanitizer_mutants.MUTANTS, ids=lambda p: p.run.__name__)
def test_without_the_bug_nothing_is_reported(mutant):
    with interpret(sanitize=True, **mutant.options) as run:
        mutant.run(False)
    assert run.reports == []


@pytest.mark.parametrize("mutant", sanitizer_mutants.MUTANTS, ids=lambda p: p.run.__name__)
def test_mutant_is_found_by_its_own_sanitizer_alone(mutant):
    with interpret(sanitize={mutant.sanitizer}, **mutant.options) as run:
        mutant.run(True)
    assert [(r.sanitizer, r.line) for r in run.reports] == [(mutant.sanitizer, mutant.line)]
