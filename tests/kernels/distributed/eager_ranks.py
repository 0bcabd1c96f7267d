"""Ranks as threads that take turns at barriers, with everything enqueued done at once.

For what does not depend on the order of streams: which rows go where. What does is left to
`tlmatrix.simulate`.
"""

import contextlib
import threading

import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.distributed.attention import exchange
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.memory import SymmetricBuffer


class _Stream:
    def wait_event(self, event):
        pass

    def wait_stream(self, stream):
        pass


class _Event:
    def record(self, stream):
        pass


_OF_RANKS = ("barrier", "barrier_without_kernel", "write_flag")


def _write_flag(flags, index, value):
    flags[index] = value


class Group:
    """What the ranks share: one runs at a time, until it comes to a barrier."""

    def __init__(self, world):
        self.world = world
        self.turn = threading.Lock()
        self.gate = threading.Barrier(world, timeout=60)
        self.storage = {}

    def barrier(self, _buffer=None, _channel=0):
        self.turn.release()
        try:
            self.gate.wait()
        finally:
            self.turn.acquire()


class _Handle:
    def __init__(self, parts):
        self.parts = parts

    def get_buffer(self, peer, shape, dtype, offset):
        start = offset * dtype.itemsize
        size = torch.Size(shape).numel() * dtype.itemsize
        return self.parts[peer][start : start + size].view(dtype).view(shape)


class EagerContext(Context):
    """A context of one of the ranks of a group."""

    def __init__(self, group, rank):
        super().__init__(None, rank, group.world, torch.device("cpu"))
        self.group = group
        self.epochs = {}

    def agree(self, operator, sizes, *, between=None, hint=""):
        """Nothing to ask: the ranks of a test are threads of one program."""

    def next_epoch(self, operator):
        self.epochs[operator] = self.epochs.get(operator, 0) + 1
        return self.epochs[operator]

    def side_stream(self):
        return _Stream()

    def capturing(self):
        return False

    def flags(self, name, count):
        return self.buffer(name, 4 * count)

    def graph_barriers(self, buffer):
        return contextlib.nullcontext()

    def buffer(self, name, size):
        parts = self.group.storage.get((name, size))
        if parts is None:
            rounded = -(-size // 64) * 64
            parts = [torch.full((rounded,), 0x7E, dtype=torch.uint8) for _ in range(self.world)]
            self.group.storage[name, size] = parts
        return SymmetricBuffer(parts[self.rank], _Handle(parts), self.rank, self.world)


@contextlib.contextmanager
def _eager(group):
    torch_names = {
        "current_stream": _Stream,
        "stream": lambda _stream: contextlib.nullcontext(),
        "Event": _Event,
    }
    kept = {name: getattr(torch.cuda, name) for name in torch_names}
    kept_here = {name: getattr(exchange, name) for name in _OF_RANKS}
    try:
        for name, value in torch_names.items():
            setattr(torch.cuda, name, value)
        exchange.barrier = exchange.barrier_without_kernel = group.barrier
        exchange.write_flag = _write_flag
        yield
    finally:
        for name, value in kept_here.items():
            setattr(exchange, name, value)
        for name, value in kept.items():
            setattr(torch.cuda, name, value)


def run_eagerly(world, program, **options):
    """`program(context)` on every rank, interpreted: what each returns."""
    group, results, errors = Group(world), [None] * world, []

    def rank_of(rank):
        with group.turn:
            try:
                with interpret(**options):
                    results[rank] = program(EagerContext(group, rank))
            except BaseException as error:  # noqa: BLE001 - handed on below
                errors.append(error)
                group.gate.abort()

    with _eager(group):
        threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wrong = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (wrong or errors)[0]
    return results
