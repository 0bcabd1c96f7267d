"""Races between blocks: grids of one kernel are ordered, and a race names two different blocks."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import DEFAULT_SANITIZERS, interpret

ENGINES = ("tiles", "threads", "roles")
N = 128


@T.macro
def row(engine, statement, b, X, S):
    """Execute a statement for each element of a row, in the form that an engine runs."""
    if engine == "tiles":
        for i in T.Parallel(N):
            statement(b, i, X, S)
    elif engine == "threads":
        statement(b, T.get_thread_binding(), X, S)
    else:
        with T.ws(1):
            statement(b, T.get_thread_binding() - N, X, S)


@T.macro
def reads(b, i, X, S):
    S[b, i] = X[i]


@T.macro
def updates(b, i, X, S):
    X[i] = X[i] * 2.0


@T.macro
def clears(b, i, X, S):
    X[i] = 0.0


@T.macro
def adds(b, i, X, S):
    T.atomic_add(X[i], S[b, i])


@T.macro
def reads_then_last_writes(b, i, X, S):
    S[b, i] = X[i]
    if b == 3:
        X[i] = 0.0


@T.macro
def adds_then_last_writes(b, i, X, S):
    T.atomic_add(X[i], S[b, i])
    if b == 3:
        X[i] = 0.0


@T.macro
def adds_then_reads(b, i, X, S):
    T.atomic_add(X[i], S[b, i])
    S[b, i] = X[i]


def reports(engine, *grids, also=()):
    """The reports of a kernel of several grids, each a statement and its number of blocks."""
    threads = 2 * N if engine == "roles" else N
    (first, count), (second, count2) = grids

    @jit_kernel(X="f32[N]", S="f32[4, N]")
    def two_grids(X, S):
        with T.Kernel(count, threads=threads) as b:
            row(engine, first, b, X, S)
        with T.Kernel(count2, threads=threads) as b2:
            row(engine, second, b2, X, S)

    with interpret(sanitize=DEFAULT_SANITIZERS - {"unwritten"} | {*also}, on_report="keep") as run:
        two_grids()(torch.ones(N), torch.ones(4, N))
    return run.reports


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((reads, 4), (updates, 1)),
        ((reads, 4), (clears, 1)),
        ((reads, 4), (adds, 4)),
        ((updates, 1), (reads, 4)),
        ((adds, 4), (updates, 1)),
        ((adds, 4), (reads, 4)),
        ((clears, 1), (adds, 4)),
    ],
)
def test_accesses_of_two_grids_are_ordered(engine, first, second):
    assert reports(engine, first, second) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_additions_of_two_grids_have_an_order(engine):
    assert reports(engine, (adds, 1), (adds, 1), also={"atomics"}) == []
    assert {r.sanitizer for r in reports(engine, (adds, 1), (adds, 4), also={"atomics"})} == {
        "atomics"
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("before", [reads, clears, adds])
@pytest.mark.parametrize(
    ("racing", "actions"),
    [
        (reads_then_last_writes, {"write", "read"}),
        (adds_then_last_writes, {"write", "atomic"}),
        (adds_then_reads, {"read", "atomic"}),
    ],
)
def test_a_race_of_the_second_grid_names_two_of_its_blocks(engine, before, racing, actions):
    """The block's own access just before, and the grid before, hide nothing."""
    found = reports(engine, (before, 1), (racing, 4))
    assert found
    for report in found:
        assert report.sanitizer == "races"
        assert report.index == (0,)
        assert report.other.block != report.block
        assert report.other.action in actions
        words = {"read": "read", "write": "written", "atomic": "updated atomically"}
        (own,) = actions - {report.other.action}
        assert (
            f"X[0] is {words[own]}, and {words[report.other.action]} by another" in report.message
        )


def test_a_flag_orders_the_block_that_set_it_alone():
    @jit_kernel(X="f32[N]", S="f32[4, N]", F="i32[1]")
    def handed_on(X, S, F):
        with T.Kernel(3, threads=N) as b:
            for i in T.Parallel(N):
                if b < 2:
                    S[b, i] = X[i]
            if b == 1:
                T.atomic_store(F[0], 1, "release")
            if b == 2:
                seen = T.atomic_load(F[0], "acquire")
                for i in T.Parallel(N):
                    if seen == 1:
                        X[i] = 0.0

    with interpret(sanitize="races", on_report="keep") as run:
        handed_on()(torch.ones(N), torch.ones(4, N), torch.zeros(1, dtype=torch.int32))
    (report,) = run.reports
    assert (report.block, report.other.block) == ((2,), (0,))


@pytest.mark.parametrize(("resets", "races"), [(3, False), (1, True)])
@pytest.mark.parametrize("threads", [32, N])
def test_the_last_block_to_count_may_reset_the_counter(resets, races, threads):
    """Its atomic follows those of all others; that of the second one does not."""

    @jit_kernel(F="i32[1]")
    def counted(F):
        with T.Kernel(4, threads=threads):
            old = T.alloc_shared((1,), "int32")
            t = T.get_thread_binding()
            if t == 0:
                old[0] = T.atomic_add(F[0], 1, return_prev=True, memory_order="acq_rel")
            T.sync_threads()
            if old[0] == resets and t == 0:
                F[0] = 0

    with interpret(sanitize="races", on_report="keep") as run:
        counted()(torch.zeros(1, dtype=torch.int32))
    assert bool(run.reports) == races


@pytest.mark.parametrize(
    ("threads", "synchronizes", "shared", "message"),
    [
        (64, True, True, None),
        (
            64,
            False,
            True,
            "P is stored by several warps, and nothing orders that before the atomic",
        ),
        (64, False, False, None),  # nothing reads what the block stores
        (32, False, True, None),  # lanes of one warp run in step
    ],
)
def test_stores_of_all_warps_before_one_thread_counts(threads, synchronizes, shared, message):
    @jit_kernel(X="f32[4, 64]", P="f32[4, 64]", C="i32[1]", Y="f32[64]")
    def counted(X, P, C, Y):
        with T.Kernel(4, threads=threads) as block:
            last = T.alloc_shared((1,), "int32")
            t = T.get_thread_binding()
            P[block, t] = X[block, t]
            if synchronizes:
                T.sync_threads()
            if t == 0:
                last[0] = T.atomic_add(C[0], 1, return_prev=True)
            T.sync_threads()
            if last[0] == 3:
                Y[t] = P[0, t] + P[3, t] if shared else 1.0

    with interpret(sanitize="races", on_report="keep") as run:
        counted()(
            torch.ones(4, 64),
            torch.zeros(4, 64),
            torch.zeros(1, dtype=torch.int32),
            torch.zeros(64),
        )
    assert [each.message.startswith(message or "none") for each in run.reports] == [True] * bool(
        message
    )
