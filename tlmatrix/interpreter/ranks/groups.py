"""Process groups of simulated ranks: PyTorch's own functions over collectives on streams.

A collective is an operation of the current stream of every rank. The last rank to come does it; the
clocks of all are joined then.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tlmatrix.interpreter.reports import caller
from tlmatrix.interpreter.sync import context
from tlmatrix.interpreter.sync.context import current_rank
from tlmatrix.interpreter.sync.world import arrive

from .streams import Done, Operation, enqueue

if TYPE_CHECKING:
    from tlmatrix.interpreter.sync.agents import Request
    from tlmatrix.interpreter.sync.world import Rank

    from .streams import Stream

BACKEND = "simulated"


class _Work:
    """What an asynchronous collective returns."""

    def __init__(self, operation: Operation, results: Any) -> None:
        self.operation = operation
        self._results = results

    def wait(self, timeout: Any = None) -> bool:
        """The current stream waits for it, as NCCL's does."""
        del timeout
        current_rank().stream.wait_for(self.operation, f"for {self.operation.what}")
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self.operation.done

    def result(self) -> Any:
        """The tensors."""
        return self._results


_REDUCE: dict[Any, Callable[[Any, Any], Any]] = {
    dist.ReduceOp.SUM: operator.add,
    dist.ReduceOp.AVG: operator.add,
    dist.ReduceOp.PRODUCT: operator.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: operator.and_,
    dist.ReduceOp.BOR: operator.or_,
    dist.ReduceOp.BXOR: operator.xor,
}


def _reduced(tensors: list[torch.Tensor], op: Any) -> torch.Tensor:
    """The reduction, in the order of the ranks."""
    kind = next(k for k in _REDUCE if op == k)
    result = reduce(_REDUCE[kind], [t.detach() for t in tensors])
    return result / len(tensors) if kind == dist.ReduceOp.AVG else result


def _shapes(tensors: Any) -> str:
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in tensors)


_Group: Any = dist.ProcessGroup


class SimulatedGroup(_Group):  # type: ignore[misc]  # its stubs have overloads that are never called
    """A process group of simulated ranks."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size

    # -- what PyTorch asks

    def size(self) -> int:
        """How many ranks it has."""
        return self._size

    def getBackendName(self) -> str:
        """Its backend."""
        return BACKEND

    @property
    def pg_name(self) -> str:
        """Its name, the same on every rank."""
        return str(c10d._world.pg_names[self])  # noqa: SLF001

    group_name = pg_name

    def __repr__(self) -> str:
        return f"<simulated process group, rank {self._rank} of {self._size}>"

    # -- collectives

    def _collective(
        self,
        what: str,
        data: Any,
        work: Callable[[list[Any]], None],
        opts: Any,
        *,
        reads: Any = (),
        writes: Any = (),
    ) -> Any:
        rank = current_rank()
        members = tuple(dist.get_process_group_ranks(self))
        name = f"the group {self.pg_name}" if len(members) < rank.world.size else "all ranks"
        # What runs later may run in another rank's thread.
        key = (name, self.pg_name)
        place = caller()

        def operation(stream: Stream) -> Iterator[Request]:
            accesses = stream.world.accesses
            if accesses is not None:
                for tensor in reads:
                    accesses.touch(tensor, "read", what)
            with torch.no_grad():
                rendezvous = arrive(rank, stream, key, what, members, data, place, work)
            yield rendezvous.wait()
            if accesses is not None:
                for tensor in writes:
                    accesses.touch(tensor, "write", what)

        enqueued = enqueue(what, operation)
        if not getattr(opts, "asyncOp", False) and enqueued.capture is None:
            rank.call_site = place
            rank.world.wait(rank, Done(enqueued, f"for {what} to end"))
        return _Work(enqueued, writes)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks."""
        return self._collective("barrier", None, lambda _all: None, opts)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Every rank gets the reduction of all."""
        tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)

        def work(brought: list[Any]) -> None:
            for parts in zip(*brought, strict=True):
                result = _reduced(list(parts), op)
                for part in parts:
                    part.detach().copy_(result)

        return self._collective(
            f"all_reduce({_shapes(tensors)})", tensors, work, opts, reads=tensors, writes=tensors
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """One rank gets the reduction of all."""
        op, root = getattr(opts, "reduceOp", dist.ReduceOp.SUM), opts.rootRank

        def work(brought: list[Any]) -> None:
            brought[root][0].detach().copy_(_reduced([b[0] for b in brought], op))

        writes = tensors if self._rank == root else ()
        return self._collective(
            f"reduce({_shapes(tensors)})", tensors, work, opts, reads=tensors, writes=writes
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Every rank gets what one has."""
        root = opts.rootRank

        def work(brought: list[Any]) -> None:
            for k, targets in enumerate(brought):
                for target, source in zip(targets, brought[root], strict=True):
                    if k != root:
                        target.detach().copy_(source)

        mine = self._rank == root
        return self._collective(
            f"broadcast({_shapes(tensors)} of {root})",
            tensors,
            work,
            opts,
            reads=tensors if mine else (),
            writes=() if mine else tensors,
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Every rank gets what each has."""

        def work(brought: list[Any]) -> None:
            given = [i[0].detach().clone() for _, i in brought]
            for lists, _ in brought:
                for target, source in zip(lists[0], given, strict=True):
                    target.detach().copy_(source)

        return self._collective(
            f"all_gather({_shapes(inputs)})",
            (outputs, inputs),
            work,
            opts,
            reads=inputs,
            writes=outputs[0],
        )

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Every rank gets what each has, in one tensor."""
        parts = list(output.view(-1).chunk(self._size)) if output.numel() else [output] * self._size

        def work(brought: list[Any]) -> None:
            sources = [g.detach().reshape(-1).clone() for _, g in brought]
            for targets, _ in brought:
                for target, source in zip(targets, sources, strict=True):
                    target.detach().copy_(source)

        return self._collective(
            f"all_gather_into_tensor({_shapes([given])})",
            (parts, given),
            work,
            opts,
            reads=[given],
            writes=[output],
        )

    _allgather_base = all_gather_single

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Every rank gets its part of the reduction."""
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        output, given = outputs[0], inputs[0]

        def work(brought: list[Any]) -> None:
            results = [_reduced([g[k] for _, g in brought], op) for k in range(self._size)]
            for (target, _), result in zip(brought, results, strict=True):
                target.detach().copy_(result)

        return self._collective(
            f"reduce_scatter({_shapes([output])})",
            (output, given),
            work,
            opts,
            reads=given,
            writes=[output],
        )

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Every rank gets its part of the reduction, of one tensor."""
        parts = [p.view(output.shape) for p in given.reshape(-1).chunk(self._size)]
        return self.reduce_scatter([output], [parts], opts)

    _reduce_scatter_base = reduce_scatter_single

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """One rank gets what each has."""
        root = opts.rootRank

        def work(brought: list[Any]) -> None:
            for target, (_, source) in zip(brought[root][0][0], brought, strict=True):
                target.detach().copy_(source[0])

        writes = outputs[0] if self._rank == root else ()
        return self._collective(
            f"gather({_shapes(inputs)} to {root})",
            (outputs, inputs),
            work,
            opts,
            reads=inputs,
            writes=writes,
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Every rank gets its part of what one has."""
        root = opts.rootRank

        def work(brought: list[Any]) -> None:
            for (target, _), source in zip(brought, brought[root][1][0], strict=True):
                target[0].detach().copy_(source)

        reads = inputs[0] if self._rank == root else ()
        return self._collective(
            f"scatter({_shapes(outputs)} of {root})",
            (outputs, inputs),
            work,
            opts,
            reads=reads,
            writes=outputs,
        )

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Every rank gets a part of what each has."""

        def work(brought: list[Any]) -> None:
            given = [[t.detach().clone() for t in i] for _, i in brought]
            for k, (targets, _) in enumerate(brought):
                for target, source in zip(targets, given, strict=True):
                    target.detach().copy_(source[k])

        return self._collective(
            "all_to_all", (outputs, inputs), work, opts, reads=inputs, writes=outputs
        )

    def all_to_all_single(
        self, output: Any, given: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Any:
        """Every rank gets a part of what each has, in one tensor."""

        def parts(tensor: Any, sizes: Any) -> list[Any]:
            return list(tensor.split(list(sizes)) if sizes else tensor.chunk(self._size))

        return self.alltoall(parts(output, output_sizes), parts(given, input_sizes), opts)

    alltoall_base = all_to_all_single


# -- PyTorch's record of process groups. `torch.distributed` keeps it in one object of the process;
# while ranks are simulated every rank's thread has its own.

_TABLES = (
    *("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg"),
    *("pg_to_tag", "pg_coalesce_state", "pg_default_device"),
)
_RECORD: dict[str, Any] = {"default_pg": None, "group_count": 0, "comms": []}
_RECORD |= {name: {} for name in _TABLES}
"""The record of a rank that has no group."""


class ThreadsWorld:
    """PyTorch's record of process groups: a rank's thread has its own, others the process's."""

    def __init__(self, original: Any) -> None:
        object.__setattr__(self, "_original", original)

    def __getattr__(self, name: str) -> Any:
        if name == "pg_config_info" and context.rank() is not None:
            return []
        record = _record()
        if record is None or name not in record:
            return getattr(object.__getattribute__(self, "_original"), name)
        return record[name]

    def __setattr__(self, name: str, value: Any) -> None:
        record = _record()
        if record is None or name not in record:
            setattr(object.__getattribute__(self, "_original"), name, value)
        else:
            record[name] = value


def _record() -> dict[str, Any] | None:
    """The record of this thread's rank; None outside a simulation."""
    rank = context.rank()
    if rank is None:
        return None
    if "groups" not in rank.state:
        rank.state["groups"] = copy.deepcopy(_RECORD)
    found: dict[str, Any] = rank.state["groups"]
    return found


def _create(store: Any, rank: int, size: int, timeout: Any) -> SimulatedGroup:
    del store, timeout
    return SimulatedGroup(rank, size)


def join_world(rank: Rank, store: Any) -> None:
    """Make the default group in a rank's thread."""
    if BACKEND.upper() not in dist.Backend._plugins:  # noqa: SLF001  # what is registered
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])
    dist.init_process_group(
        BACKEND,
        store=store,
        rank=rank.number,
        world_size=rank.world.size,
        timeout=timedelta(days=1),
    )


def leave_world() -> None:
    """Forget the groups of a rank's thread."""
    if dist.is_initialized():
        dist.destroy_process_group()
