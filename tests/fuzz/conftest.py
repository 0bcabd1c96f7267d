"""Fixtures of the tests of searches."""

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.run.runner import Runner


@pytest.fixture
def runner():
    made = Runner(backend_named("interpreter"))
    made.prepare()
    return made
