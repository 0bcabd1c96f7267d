"""The quick tier of every spec passes interpreted, on as many simulated ranks as it asks for.

Each case is judged, and every second one gets one of the checks that run the entry again, as drawn
cases do; `make run` makes all of them. Drawn cases are left out.
"""

from pathlib import Path

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import load_spec

SPECS = sorted((Path(__file__).parents[1] / "specs").glob("*.yaml"))
PARTS = 3
"""Of each spec's cases, so that workers end at about the same time."""


def part_of(planned, part):
    """A part of the cases; those that share kernels are in one, which traces them once."""
    cases = sorted(
        planned.cases(),
        key=lambda case: "" if case.origin == "invalid" else planned.group(case),
    )
    begin, end = (len(cases) * each // PARTS for each in (part, part + 1))
    return cases[begin:end]


@pytest.fixture(scope="module")
def runner():
    found = Runner(backend_named("interpreter"))
    yield found
    found.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_case_passes(path, part, runner):
    spec = load_spec(path)
    cases = part_of(plan(spec, "quick"), part)
    results = [
        runner.run(spec, case, path=str(path), reruns="rotate" if number % 2 else set())
        for number, case in enumerate(cases)
    ]
    assert cases
    failed = [f"{result.case}: {result.findings}" for result in results if result.failed]
    assert not failed, "\n".join(failed)
