"""Bugs planted in kernels with roles are reported; without them ten schedules say nothing."""

from contextlib import suppress

import planted
import planted_roles
import pytest

from tlmatrix.interpreter import InterpreterError, interpret, scheduled

RUNS = [("eager", 0), ("lazy", 0)]
MANY = [*RUNS, *((name, seed) for seed in range(1, 5) for name in ("random", "adversarial"))]


def reports(plant, bug, schedule, seed, **options):
    with (
        interpret(**{"sanitize": True, **plant.options, **options}) as run,
        scheduled(schedule, seed=seed, races=None),
        suppress(InterpreterError),
    ):
        plant.run(bug)
    return run.reports


def lines(report):
    return {report.line} | ({report.other.line} if report.other is not None else set())


@pytest.mark.parametrize("plant", planted.ROLE_PLANTS, ids=str)
def test_a_bug_of_roles_is_reported_at_its_line(plant):
    everything = []
    for schedule, seed in RUNS:
        found = reports(plant, plant.name, schedule, seed)
        assert found, schedule
        assert {r.sanitizer for r in found} <= {plant.sanitizer, *plant.also}, (schedule, found)
        everything += found
    right = [r for r in everything if (r.sanitizer, r.buffer) == (plant.sanitizer, plant.buffer)]
    assert any(plant.line in lines(r) and r.file == plant.file for r in right), everything


@pytest.mark.parametrize("plant", planted.ROLE_PLANTS, ids=str)
def test_a_bug_of_roles_is_found_by_its_own_sanitizer_alone(plant):
    for schedule, seed in RUNS:
        found = reports(plant, plant.name, schedule, seed, sanitize={plant.sanitizer})
        assert {r.sanitizer for r in found} <= {plant.sanitizer}
        if any(plant.line in lines(r) for r in found):
            return
    pytest.fail(f"{plant} is not reported by {plant.sanitizer} alone")


CLEAN = {p.run.__name__: p for p in planted.ROLE_PLANTS}


@pytest.mark.parametrize("name", CLEAN)
def test_kernels_with_roles_are_silent_without_a_bug(name):
    for schedule, seed in MANY:
        with (
            interpret(sanitize=True, **CLEAN[name].options) as run,
            scheduled(schedule, seed=seed),
        ):
            CLEAN[name].run("")
        assert run.reports == []


def test_sixty_bugs_are_planted():
    assert planted_roles.__doc__
    assert len(planted.PLANTS) + len(planted.ROLE_PLANTS) >= 60
