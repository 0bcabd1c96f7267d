"""Mutants of warp-specialized kernels are reported; ten schedules of the originals are clean."""

from contextlib import suppress

import pytest
import role_mutants  # noqa: F401 - registers its mutants
import sanitizer_mutants

from tlmatrix.interpreter import InterpreterError, interpret, scheduled

RUNS = [("eager", 0), ("lazy", 0)]
MANY = [*RUNS, *((name, seed) for seed in range(1, 5) for name in ("random", "adversarial"))]


def reports(mutant, bug, schedule, seed, **options):
    with (
        interpret(**{"sanitize": True, **mutant.options, **options}) as run,
        scheduled(schedule, seed=seed, races=None),
        suppress(InterpreterError),
    ):
        mutant.run(bug)
    return run.reports


def lines(report):
    return {report.line} | ({report.other.line} if report.other is not None else set())


@pytest.mark.parametrize("mutant", sanitizer_mutants.ROLE_MUTANTS, ids=str)
def test_a_bug_of_roles_is_reported_at_its_line(mutant):
    everything = []
    for schedule, seed in RUNS:
        found = reports(mutant, mutant.name, schedule, seed)
        assert found, schedule
        assert {r.sanitizer for r in found} <= {mutant.sanitizer, *mutant.also}, (schedule, found)
        everything += found
    right = [r for r in everything if (r.sanitizer, r.buffer) == (mutant.sanitizer, mutant.buffer)]
    assert any(mutant.line in lines(r) and r.file == mutant.file for r in right), everything


OF_EACH_SANITIZER = {p.sanitizer: p for p in sanitizer_mutants.ROLE_MUTANTS}


@pytest.mark.parametrize("mutant", OF_EACH_SANITIZER.values(), ids=str)
def test_a_bug_of_roles_is_found_by_its_own_sanitizer_alone(mutant):
    for schedule, seed in RUNS:
        found = reports(mutant, mutant.name, schedule, seed, sanitize={mutant.sanitizer})
        assert {r.sanitizer for r in found} <= {mutant.sanitizer}
        if any(mutant.line in lines(r) for r in found):
            return
    pytest.fail(f"{mutant} is not reported by {mutant.sanitizer} alone")


CLEAN = {p.run.__name__: p for p in sanitizer_mutants.ROLE_MUTANTS}


@pytest.mark.parametrize("name", CLEAN)
def test_kernels_with_roles_are_silent_without_a_bug(name):
    for schedule, seed in MANY:
        with interpret(sanitize=True, **CLEAN[name].options) as run, scheduled(schedule, seed=seed):
            CLEAN[name].run("")
        assert run.reports == []
