"""Models of functions that kernels call in CUDA source of their own."""

import pytest
import ranked_kernels as kernels
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix import interpret, simulate
from tlmatrix.interpreter import (
    DeadlockError,
    InterpreterError,
    Pointer,
    Unsupported,
    model_extern,
    until,
)


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


def add_at(counts, i, value):
    before = counts[i]
    counts[i] = before + value
    return before


def counted(statement, threads=64):
    """The slots and the counts that a kernel gets of `add_at`, for ids 3, 3, 1, 3, 0."""
    model_extern("test_add_at", add_at)

    @jit_kernel(ids="i32[5]", counts="i32[8]", slots="i32[5]", out_idx=[-1])
    def kernel(ids, counts, slots):
        with T.Kernel(1, threads=threads):
            statement(ids, counts, slots)

    counts = torch.zeros(8, dtype=torch.int32)
    with interpret(sanitize=True, on_report="keep") as run:
        slots = kernel()(torch.tensor([3, 3, 1, 3, 0], dtype=torch.int32), counts)
    assert run.reports == []
    return slots.tolist(), counts.tolist()


@T.macro
def by_thread(ids, counts, slots):
    tx = T.get_thread_binding()
    if tx < 5:
        slots[tx] = T.call_extern("int32", "test_add_at", T.address_of(counts[0]), ids[tx], 1)


@T.macro
def by_iteration(ids, counts, slots):
    for i in T.Parallel(5):
        slots[i] = T.call_extern("int32", "test_add_at", T.address_of(counts[ids[i]]), 0, 1)


@T.macro
def by_block(ids, counts, slots):
    for i in T.serial(5):
        slots[i] = T.call_extern("int32", "test_add_at", T.address_of(counts[0]), ids[i], 1)


@T.macro
def by_role(ids, counts, slots):
    own = T.alloc_shared((5,), "int32")
    with T.ws(1):
        T.copy(ids, own)  # what all threads of a role do together
        for i in T.serial(5):
            slots[i] = T.call_extern("int32", "test_add_at", T.address_of(counts[0]), own[i], 1)


@T.macro
def by_thread_of_a_role(ids, counts, slots):
    with T.ws(1):
        tx = T.get_thread_binding() - 128
        if tx < 5:
            slots[tx] = T.call_extern("int32", "test_add_at", T.address_of(counts[0]), ids[tx], 1)


@pytest.mark.parametrize(
    ("statement", "threads"),
    [
        (by_thread, 64),
        (by_iteration, 64),
        (by_block, 64),
        (by_role, 256),
        (by_thread_of_a_role, 256),
    ],
)
def test_a_model_is_used_in_every_kind_of_kernel(statement, threads):
    slots, counts = counted(statement, threads)
    assert slots == [0, 1, 0, 2, 0]
    assert counts == [1, 1, 0, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("where", ["global", "shared"])
def test_what_a_model_gets_the_address_of_counts_as_written(where):
    def numbered(pointer, count):
        for k in range(count):
            pointer[k] = k

    model_extern("test_numbered", numbered)

    @jit_kernel(out_idx=[-1], threads=32)
    def kernel(Y: T.Tensor((32,), "float32")):
        if where == "global":
            T.call_extern("handle", "test_numbered", T.address_of(Y[0]), 32)
        else:
            s = T.alloc_shared((32,), "float32")
            T.call_extern("handle", "test_numbered", T.address_of(s[0]), 32)
            T.copy(s, Y)

    with interpret(sanitize=True, on_report="keep") as run:
        assert torch.equal(kernel()(), torch.arange(32.0))
    assert run.reports == []


def test_a_model_of_a_role_may_wait_for_another_block():
    def until_full(pointer):
        yield until(lambda: pointer.load() == 2, "both blocks")
        return pointer[1]

    model_extern("test_add_at", add_at)
    model_extern("test_until_full", until_full)

    @jit_kernel(counts="i32[2]", seen="i32[2]", out_idx=[-1])
    def kernel(counts, seen, blocks):
        with T.Kernel(blocks, threads=64) as b:
            tx = T.get_thread_binding()
            if tx == 0:
                T.call_extern("int32", "test_add_at", T.address_of(counts[0]), 0, 1)
                seen[b] = T.call_extern("int32", "test_until_full", T.address_of(counts[0]))

    with interpret():
        assert kernel(2)(torch.tensor([0, 7], dtype=torch.int32)).tolist() == [7, 7]
        with pytest.raises(DeadlockError, match="wait for both blocks"):
            kernel(1)(torch.tensor([0, 7], dtype=torch.int32))


def test_a_pointer_is_indexed_as_in_c():
    pointer = Pointer(torch.arange(32).view(4, 8).numpy(), (1, 6), "a")
    assert (pointer[0], pointer[3], pointer[-1]) == (14, 17, 13)
    assert (pointer + 3).index == (2, 1)
    pointer[2] = 5
    assert pointer.array[2, 0] == 5
    with pytest.raises(InterpreterError, match=r"a\[1, 6\] \+ 18 is outside a, which has shape"):
        pointer[18]


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
