"""The contexts in which kernels run on the CPU: `interpret()`, `traced()`, `simulate()`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._C._distributed_c10d import HashStore

from tlmatrix.interpreter.coverage import Recorder
from tlmatrix.interpreter.errors import DeadlockError
from tlmatrix.interpreter.explain import LaunchLog
from tlmatrix.interpreter.ranks.allocations import Memory
from tlmatrix.interpreter.ranks.device import HostReads, answering, on_streams
from tlmatrix.interpreter.ranks.groups import join_world, leave_world
from tlmatrix.interpreter.ranks.streams import Stream, synchronize
from tlmatrix.interpreter.reports import declared_sequences, sanitizer_names
from tlmatrix.interpreter.sync import settings
from tlmatrix.interpreter.sync.accesses import Accesses
from tlmatrix.interpreter.sync.world import World

from .intercept import entry_points
from .session import Session, current, environment, local

if TYPE_CHECKING:
    from tlmatrix.interpreter.explain import Trace
    from tlmatrix.interpreter.reports import Report, Sequences
    from tlmatrix.interpreter.sync.world import Rank

    from .kernel import TracedKernel
    from .session import OnLaunch


# `interpret()`: the context in which kernels run on the CPU, and kernels made without a jit -------


@contextmanager
def interpret(
    *,
    arch: str = "sm_90a",
    sanitize: bool | str | Collection[str] | None = None,
    on_report: Literal["collect", "keep", "raise"] = "collect",
    sequences: Mapping[str, Any] | Callable[[str, torch.Tensor], Sequences | None] | None = None,
    partial: Collection[str] = (),
    poison: Mapping[torch.dtype, int] | None = None,
    tf32: bool | None = None,
    lowered: bool | None = None,
    coverage: bool | Recorder | None = None,
    trace: Trace | bool = False,
    launched: list[TracedKernel] | None = None,
) -> Iterator[Session]:
    """Run every TileLang kernel called inside on the CPU, with no GPU and no change to its code.

    Lazy factories return an `InterpretedKernel`, eager kernels run at once,
    `tilelang.compile` gives an `InterpretedKernel`. Tensors must be on the CPU. Contexts nest;
    only the thread that entered is concerned.

        with interpret(sanitize=True) as run:
            op(...)
        for report in run.reports:
            print(report)

    Args:
        arch: the CUDA architecture kernels are traced for.
        sanitize: True for the default sanitizers, or the names of those wanted (`SANITIZERS`
            lists them); None for what the enclosing context has, or none.
        on_report: whether findings are collected in `reports` of what the context gives ("keep",
            or "collect" to have them logged too, as warnings of the logger
            `tlmatrix.interpreter`), or raised as `SanitizerError` when their kernel ends.
        sequences: for packed parameters by name their boundaries (cu_seqlens), a pair of
            boundaries and the dimension of the rows, or `Sequences`; or a function that gives
            `Sequences` or None for a parameter's name and tensor.
        partial: names of parameters that kernels may leave unwritten in part.
        poison: the bits, as an integer of its size, with which the caller has filled what is
            not written, by dtype. Elements that hold them count as unwritten, in whatever a
            kernel is passed, and all others as written.
        tf32: whether `T.gemm` cuts float32 factors to TF32, as tensor cores do; None for what
            the enclosing context has, or not.
        lowered: whether kernels run as TileLang lowers them for `arch`, thread by thread; None
            for what the enclosing context has, or not.
        coverage: whether to count which lines and guards of kernels are exercised, in
            `coverage` of what the context gives; None for what the enclosing context does, to
            which what is counted here is added. Several contexts count together in a `Recorder`.
        trace: an element to follow in every kernel that writes it, with its explanations in
            `traces` of what the context gives; True keeps the launches (and so their tensors),
            for `explain` of what the context gives.
        launched: a list to which kernels are added that are traced and not run, see `traced`.

    Raises:
        ValueError: for a sanitizer that does not exist, or sequences that are none.
    """
    if on_report not in ("collect", "keep", "raise"):
        raise ValueError(f'on_report must be "collect", "keep" or "raise", got {on_report!r}')
    outer = current()
    if sanitize is None and outer is not None:
        session = replace(outer, arch=arch)
    else:
        session = Session(
            arch=arch,
            sanitizers=sanitizer_names(sanitize or False),
            on_report=on_report,
            sequences=declared_sequences(sequences),
            partial=frozenset(partial),
            poison=dict(poison or {}),
            tf32=outer.tf32 if outer is not None else False,
            lowered=outer.lowered if outer is not None else False,
            recorder=outer.recorder if outer is not None else None,
            observers=outer.observers if outer is not None else {},
        )
    if tf32 is not None:
        session.tf32 = tf32
    if lowered is not None:
        session.lowered = lowered
    if isinstance(coverage, Recorder):
        session.recorder = coverage
    elif coverage is not None:
        session.recorder = Recorder() if coverage else None
    if trace:
        session = replace(session, trace=trace, traces=[], untraced={}, log=LaunchLog())
    if launched is not None:
        session.launched = launched
    with entry_points():
        local.stack.append(session)
        try:
            yield session
        finally:
            local.stack.pop()
            if coverage is True and outer is not None and outer.recorder is not None:
                outer.recorder.add(session.coverage)


@contextmanager
def traced(*, arch: str, on_launch: OnLaunch | None = None) -> Iterator[list[TracedKernel]]:
    """Trace every TileLang kernel called inside for an architecture, and run none.

    Gives the list to which each kernel is added when it is first launched. `on_launch` is called
    with each launch: the kernel, its arguments and its symbolic dims, both by name.
    """
    launched: list[TracedKernel] = []
    with interpret(arch=arch, launched=launched) as session:
        session.on_launch = on_launch
        yield launched


# `simulate`: a program on several simulated ranks -------------------------------------------------


@dataclass
class Simulation:
    """What a simulation gave.

    Attributes:
        results: what each rank's program returned, by rank.
        reports: what the sanitizers found: races between ranks and streams, and what they find of
            single kernels.
        world: the number of ranks.
        seed: the interleaving.
        steps: how often the scheduler chose.
    """

    results: list[Any]
    reports: tuple[Report, ...]
    world: int
    seed: int
    steps: int = field(compare=False, default=0)


def simulate(
    fn: Callable[[int], Any],
    world: int = 4,
    *,
    seed: int = 0,
    stragglers: bool = False,
    arch: str | None = None,
    sanitize: bool | str | Collection[str] | None = None,
    sms: int = 8,
) -> Simulation:
    """Run `fn(rank)` on `world` simulated ranks in this process, with no GPU.

    On each rank `torch.distributed` is initialised, `torch.distributed._symmetric_memory` gives
    buffers that all ranks reach, and `torch.cuda` streams and events are simulated: TileLang
    kernels, `copy_`, `fill_` and `zero_` run asynchronously on the current stream, other
    operations wait for it. Tensors live on the CPU.

        found = simulate(lambda rank: op(a[rank], b[rank]), world=4, seed=7)

    Args:
        fn: what a rank does; gets its number.
        world: the number of ranks.
        seed: the interleaving; the same seed gives the same one.
        stragglers: whether ranks, streams and blocks fall behind for a while now and then.
        arch: the architecture that kernels are traced for; None for that of the enclosing
            `interpret()`, or sm_90a.
        sanitize: as for `interpret`; None for what the enclosing `interpret()` has, or the default
            sanitizers if there is none.
        sms: how many multiprocessors a rank has, and so how many blocks of kernels that wait for
            flags it can hold at once.

    Returns:
        The results and the reports. The latter are in the enclosing `interpret()` too.

    Raises:
        DeadlockError: no rank can go on; names what each waits for and the missing writes.
        SynchronizationError: if ranks call different collectives.
        ValueError: for a number below one.
        Exception: what `fn` raised on the first rank that failed.
    """
    if world < 1 or sms < 1:
        raise ValueError(f"world and sms must be at least 1, got {world} and {sms}")
    outer = current()
    if sanitize is None and outer is None:
        sanitize = True
    arch = arch or (outer.arch if outer is not None else "sm_90a")
    keep: Any = outer.on_report if outer is not None else "keep"
    with ExitStack() as stack:
        session = stack.enter_context(interpret(arch=arch, sanitize=sanitize, on_report=keep))
        stack.enter_context(answering())
        return _simulate(fn, session, world, seed, stragglers, sms)


def _simulate(
    fn: Callable[[int], Any],
    session: Session,
    size: int,
    seed: int,
    stragglers: bool,
    sms: int,
) -> Simulation:
    world = World(size, seed=seed, stragglers=stragglers, blocks=sms)
    world.state.update(arch=session.arch, sms=sms, traced=session.launched is not None)
    world.memory = Memory()
    if "races" in session.sanitizers:
        world.accesses = Accesses(world)
    world.around = partial(environment, session)
    before = len(session.reports)
    results: list[Any] = [None] * size
    store = HashStore()
    stack, chosen, grad = local.stack, settings.inherited(), torch.is_grad_enabled()

    def body(rank: Rank) -> None:
        Stream(rank, "default")
        # The contexts of the thread that asked, in the rank's thread.
        local.stack = list(stack)
        settings.inherit(chosen)
        torch.set_grad_enabled(grad)
        try:
            join_world(rank, store)
            try:
                with HostReads(rank), on_streams(rank):
                    results[rank.number] = fn(rank.number)
                synchronize()
            finally:
                leave_world()
        finally:
            local.stack = []

    threads, hook = torch.get_num_threads(), sys.excepthook
    torch.set_num_threads(1)
    try:
        world.run(body)
    except DeadlockError as error:
        if "barriers" in session.sanitizers:
            session.reports.extend(error.reports)
        raise
    finally:
        torch.set_num_threads(threads)
        # PyTorch marks the tracebacks of a process that is a rank.
        sys.excepthook = hook
        if world.accesses is not None:
            found = world.accesses.reports()
            if world.failed is not None:
                # Nothing is raised in the place of what is being raised.
                session.reports.extend(found)
            else:
                session.add(found)
    return Simulation(results, tuple(session.reports[before:]), size, seed, world.steps)
