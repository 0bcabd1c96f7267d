"""Every planted memory bug is reported, once, by the right sanitizer, at the right line."""

import planted
import pytest

from tlmatrix.interpreter import interpret


@pytest.mark.parametrize("plant", planted.PLANTS, ids=lambda p: p.run.__name__)
def test_a_planted_bug_is_reported_at_its_line(plant):
    with interpret(sanitize=True, **plant.options) as run:
        plant.run(True)
    named = [r for r in run.reports if r.sanitizer not in plant.also]
    found = [(r.sanitizer, r.buffer, r.line) for r in named]
    assert found == [(plant.sanitizer, plant.buffer, plant.line)], run.reports
    assert {r.line for r in run.reports} == {plant.line}
    assert {r.file for r in run.reports} == {planted.__file__}
    assert {r.kernel for r in run.reports} == {"main"}


@pytest.mark.parametrize("plant", planted.PLANTS, ids=lambda p: p.run.__name__)
def test_without_the_bug_nothing_is_reported(plant):
    with interpret(sanitize=True, **plant.options) as run:
        plant.run(False)
    assert run.reports == []


@pytest.mark.parametrize("plant", planted.PLANTS, ids=lambda p: p.run.__name__)
def test_a_planted_bug_is_found_by_its_own_sanitizer_alone(plant):
    with interpret(sanitize={plant.sanitizer}, **plant.options) as run:
        plant.run(True)
    assert [(r.sanitizer, r.line) for r in run.reports] == [(plant.sanitizer, plant.line)]
