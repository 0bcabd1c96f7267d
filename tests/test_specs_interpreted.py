"""Every spec passes interpreted at each value of its axes, on as many simulated ranks as it needs.

That is its tier `each`, with extra cases and invalid inputs. Every second case gets one of the
checks that run the entry again; `make run` makes all of them, for every two values.
"""

from pathlib import Path

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import load_spec

SPECS = sorted((Path(__file__).parents[1] / "specs").glob("*.yaml"))


@pytest.fixture(scope="module")
def runner():
    found = Runner(backend_named("interpreter"))
    yield found
    found.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_case_passes(path, runner):
    spec = load_spec(path)
    cases = list(plan(spec, "each").cases())
    results = [
        runner.run(spec, case, path=str(path), reruns="rotate" if number % 2 else set())
        for number, case in enumerate(cases)
    ]
    assert cases
    failed = [f"{result.case}: {result.findings}" for result in results if result.failed]
    assert not failed, "\n".join(failed)
