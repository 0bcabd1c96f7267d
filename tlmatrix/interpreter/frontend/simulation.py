"""`simulate`: a program on several simulated ranks."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import HashStore

from tlmatrix.interpreter.errors import DeadlockError
from tlmatrix.interpreter.ranks.allocations import Memory
from tlmatrix.interpreter.ranks.devices import answering
from tlmatrix.interpreter.ranks.groups import join_world, leave_world
from tlmatrix.interpreter.ranks.operations import HostReads, on_streams
from tlmatrix.interpreter.ranks.streams import Stream, synchronize
from tlmatrix.interpreter.sync import settings
from tlmatrix.interpreter.sync.accesses import Accesses
from tlmatrix.interpreter.sync.world import World

from . import session as sessions
from .environment import environment
from .interpret import interpret

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tlmatrix.interpreter.reports import Report
    from tlmatrix.interpreter.sync.world import Rank

    from .session import Session


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
    outer = sessions.current()
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
    stack, chosen, grad = sessions.local.stack, settings.inherited(), torch.is_grad_enabled()

    def body(rank: Rank) -> None:
        Stream(rank, "default")
        # The contexts of the thread that asked, in the rank's thread.
        sessions.local.stack = list(stack)
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
            sessions.local.stack = []

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
