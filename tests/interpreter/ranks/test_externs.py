"""Models of functions that kernels call in CUDA source of their own."""

from __future__ import annotations

import pytest
import ranked_kernels as kernels
import torch

from tlmatrix import interpret, simulate
from tlmatrix.interpreter import InterpreterError, Pointer, Unsupported, model_extern, until


def test_a_model_may_wait_and_return_a_value():
    def acquire(pointer):
        yield until(lambda: pointer.load() == 0, "the lock")
        pointer.store(1)
        return 1

    model_extern("test_acquire", acquire)
    model_extern("test_release", lambda pointer: pointer.store(0))
    model_extern("test_double", lambda number: 2 * number)
    with interpret():
        lock, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        kernels.locked()(lock, total)
    assert total.item() == 2 * sum(range(6))
    assert lock.item() == 0


def test_what_has_no_model_is_refused_by_name():
    with interpret(), pytest.raises(Unsupported, match=r"call_extern of .*test_unknown"):
        kernels.unknown()


def test_a_model_must_be_callable():
    with pytest.raises(TypeError, match="the model of f must be callable, got int"):
        model_extern("f", 3)


def test_flags_in_kernels_with_roles_are_refused():
    with interpret(), pytest.raises(Unsupported, match="tlm_wait_ge_acquire_sys"):
        kernels.roles_and_flags()


def test_a_spin_on_an_atomic_load_between_ranks_is_refused_with_the_remedy():
    def program(rank):
        kernels.spin_atomically()(torch.zeros(8, dtype=torch.int32))

    with pytest.raises(Unsupported, match=r"models waits by tlm_wait_\* and tlm_load_\*"):
        simulate(program, 1)


def test_a_pointer_is_the_same_by_every_name_and_wraps():
    array = torch.zeros(4, 8, dtype=torch.int32).numpy()
    pointer = Pointer(array, (2, 3), "a")
    assert pointer.address == Pointer(array[2], (3,), "b").address
    pointer.store(1 << 31)
    assert pointer.load() == -(1 << 31)
    assert str(pointer) == "a[2, 3]"
    with pytest.raises(InterpreterError, match=r"the address of a\[4, 0\] is taken"):
        Pointer(array, (4, 0), "a")
