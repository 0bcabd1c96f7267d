"""A lowering process that the tests of a module share: its start takes seconds."""

from functools import partial

import pytest

from tlmatrix.backend.assembly import Assembler
from tlmatrix.backend.assembly.assembler import Lowerer

__all__ = ["SharingAssembler", "lowerer", "shared_lowering"]


class SharingAssembler(Assembler):
    """An assembler that leaves its lowering process to the next test."""

    def close(self):
        """Keep the lowering process."""


@pytest.fixture(scope="module")
def lowerer():
    made = Lowerer()
    yield made
    made.close()


@pytest.fixture
def shared_lowering(monkeypatch, lowerer):
    """Runners of this process lower kernels in the shared process."""
    shared = partial(SharingAssembler, lowerer=lowerer)
    monkeypatch.setattr("tlmatrix.backend.assembly.Assembler", shared)
