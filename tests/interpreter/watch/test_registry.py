"""An observer from outside: one class, one line of the registry."""

from collections import Counter

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.watch import registry
from tlmatrix.interpreter.watch.observer import Observer


class Accesses(Observer):
    """Counts which buffer is read, written or updated atomically, by how many accesses."""

    name = "accesses"
    argument = "seen_accesses"

    def access(self, e, access, action):
        """Elements are about to be accessed."""
        site = self.sites.access(e, access.buf, action)
        e.w.line(f"seen_accesses[{site}] += 1")

    def before_tile(self, e, op):
        """A tile operation is about to access its operands."""
        for effect in op.effects:
            site = self.sites.access(e, effect.region.buf, effect.action)
            e.w.line(f"seen_accesses[{site}] += 1")

    def plan(self, e):
        """The sites."""
        del e
        return self.sites.sites


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setenv("TLMATRIX_PROGRAMS", "off")
    monkeypatch.setattr(registry, "OBSERVERS", [*registry.OBSERVERS, Accesses])


@jit_kernel(x="f32[blocks, 8]", y="f32[blocks, 8]", out_idx=[1])
def doubled(x, y, blocks):
    with T.Kernel(blocks, threads=32) as b:
        row = T.alloc_fragment((8,), "float32")
        T.copy(x[b, :], row)
        for i in T.Parallel(8):
            y[b, i] = row[i] * 2


@pytest.mark.parametrize("sanitize", [False, True])
def test_an_observer_from_outside(registered, sanitize):
    del registered
    counts, plans = Counter(), []

    def other_half(plan):
        plans.append(plan)
        return counts

    x = torch.randn(3, 8)
    with interpret(sanitize=sanitize, coverage=True) as run:
        run.observers["accesses"] = other_half
        assert torch.equal(doubled(3)(x), x * 2)
    seen = {(plans[0][k].buffer, plans[0][k].action): n for k, n in counts.items()}
    assert seen == dict.fromkeys(
        [("x", "read"), ("row", "write"), ("row", "read"), ("y", "write")], 3
    )
    assert not run.reports
    assert run.coverage.lines


def test_an_observer_that_is_not_asked_for_costs_nothing(registered):
    del registered
    with interpret():
        assert "seen_accesses" not in doubled(3).source
