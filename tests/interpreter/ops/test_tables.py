"""A family of operations is one value, added to the tables of all families."""

import numpy as np
import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret, ops
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.numbers import named


@jit_kernel(X="f32[n]", Y="f32[n]", out_idx=[1], threads=32)
def following(X, Y, n):
    for i in T.Parallel(n):
        Y[i] = T.nextafter(X[i], T.float32(8))


def next_float(value, limit):
    return np.nextafter(value, np.float32(limit))


def emit_next_float(e, call):
    value, limit = map(e.expr, call.args)
    return named(e, f"next_float({value.code}, {limit.code})", call.dtype, (value, limit))


OPERATIONS = ops.Operations(
    rules=Rules(calls={"tirx.nextafter": emit_next_float}), functions=(next_float,)
)


def test_an_operation_that_no_family_has_is_refused():
    with interpret(), pytest.raises(Unsupported, match=r"the operation tirx\.nextafter"):
        following(16)


def test_a_family_from_outside_adds_its_operations(monkeypatch):
    monkeypatch.setattr(ops, "TABLES", ops.Tables(ops.BASE, (*ops.FAMILIES, OPERATIONS)))
    with interpret():
        found = following(32)(torch.ones(32))
    assert (found == torch.nextafter(torch.ones(32), torch.full((32,), 8.0))).all()
