"""Shards a problem over ranks, as the spec's `shards` declares.

Families build whole problems and checks judge whole results; ranks get shards of them. Whole
problems name the rank that owns each element of their results.

A `Split` says which elements of a dimension belong to which rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.model import Dim, InapplicableError, Problem
from tlmatrix.problem.storage import with_storage
from tlmatrix.problem.tensors import LazyMapping, indexable
from tlmatrix.spec.importing import refuse
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.fields import FAMILIES
from tlmatrix.spec.model.spec import WORLD, has_ranks
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from tlmatrix.problem.model import Relation, RelationKind, TensorInfo
    from tlmatrix.spec.model.spec import Shard, Spec


@dataclass(frozen=True)
class Split:
    """The split of one tensor over ranks.

    Attributes:
        axis: the dimension that is split.
        rows: for each rank its indices along `axis`, in the order of its shard.
        own: whether the dimension counts ranks, so that shards lack it.
    """

    axis: int
    rows: tuple[torch.Tensor, ...]
    own: bool = False

    def of(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's shard of a whole tensor: a copy.

        A tensor of another length (an invalid input) goes whole to every rank.
        """
        length = sum(len(rows) for rows in self.rows)
        if self.axis >= tensor.ndim or tensor.shape[self.axis] != length:
            return tensor.clone()
        if self.own:
            return tensor.select(self.axis, rank).clone()
        return indexable(tensor).index_select(self.axis, self._on(tensor, rank)).view(tensor.dtype)

    def shape(self, whole: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """The shape of a rank's shard of a tensor of shape `whole`."""
        before, after = whole[: self.axis], whole[self.axis + 1 :]
        return (*before, *after) if self.own else (*before, len(self.rows[rank]), *after)

    def locate(self, index: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The rank that owns an element of the whole, and the element's index in its shard."""
        before, at, after = index[: self.axis], index[self.axis], index[self.axis + 1 :]
        for rank, rows in enumerate(self.rows):
            found = torch.nonzero(rows == at).flatten()
            if len(found):
                mine = () if self.own else (int(found[0]),)
                return rank, (*before, *mine, *after)
        raise IndexError(f"no rank has index {at} of dimension {self.axis}")

    def put(self, whole: torch.Tensor, part: torch.Tensor, rank: int) -> None:
        """Write a rank's shard, of the right shape, into the whole."""
        if self.own:
            part = part.unsqueeze(self.axis)
        indexable(whole).index_copy_(self.axis, self._on(whole, rank), indexable(part.contiguous()))

    def _on(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return self.rows[rank].to(tensor.device)

    def owner(self, size: int) -> tuple[int, ...]:
        """The rank that owns each index along the dimension."""
        found = torch.zeros(size, dtype=torch.int64)
        for rank, rows in enumerate(self.rows):
            found[rows] = rank
        return tuple(found.tolist())


class UnevenError(ValueError):
    """A length that ranks cannot share evenly, with no rule for uneven lengths."""

    def __init__(self, length: int, count: int) -> None:
        self.length = length
        self.count = count
        super().__init__(f"{length} is not divisible by {count}")


def parts(length: int, count: int, uneven: str | None) -> list[range]:
    """Split `range(length)` into `count` ranges, in order.

    With `uneven` "balanced" the first ranges have one more, with "ceil" each has
    ceil(length / count) and the last ones less or nothing.

    Raises:
        UnevenError: `count` does not divide `length`, and `uneven` is None.
    """
    least, more = divmod(length, count)
    if more and uneven is None:
        raise UnevenError(length, count)
    if uneven == "ceil":
        most = -(-length // count)
        return [range(min(k * most, length), min((k + 1) * most, length)) for k in range(count)]
    ends = list(accumulate((least + (k < more) for k in range(count)), initial=0))
    return [range(begin, end) for begin, end in pairwise(ends)]


def chunks_of(rank: int, world: int, order: str) -> list[int]:
    """Indices of a rank's chunks, of `world` chunks if contiguous, of 2 `world` in a zigzag."""
    return [rank] if order == "contiguous" else [rank, 2 * world - 1 - rank]


def owners(
    lengths: Sequence[int], world: int, order: str = "contiguous", uneven: str | None = None
) -> list[list[range]]:
    """For each rank its rows of packed sequences with these lengths; each sequence is split alone.

    Raises:
        UnevenError: see `parts`.
    """
    count = world if order == "contiguous" else 2 * world
    found: list[list[range]] = [[] for _ in range(world)]
    begin = 0
    for length in lengths:
        chunks = parts(length, count, uneven)
        for rank, rows in enumerate(found):
            for number in chunks_of(rank, world, order):
                chunk = chunks[number]
                rows.append(range(begin + chunk.start, begin + chunk.stop))
        begin += length
    return found


_ALIASES = {"seqlen": "position"}
"""Other names of dimensions in `shards`."""


class NotSharedError(InapplicableError):
    """A length that ranks cannot share as `shards` declares."""


@dataclass(frozen=True)
class Sharding:
    """How the tensors of one problem are sharded over ranks.

    Attributes:
        world: the number of ranks.
        splits: the split of each tensor that is split, by name; every rank has all others whole.
        summed: results that are the sum over the ranks' results.
    """

    world: int
    splits: Mapping[str, Split]
    summed: frozenset[str]

    @classmethod
    def of(cls, spec: Spec, problem: Problem) -> Sharding:
        """The sharding of a case's problem.

        Raises:
            SpecError: a tensor or a dimension that the problem does not have, or a length that
                the ranks cannot share evenly; the issue stands in `shards`.
        """
        world = int(problem.values[WORLD])  # type: ignore[arg-type]
        declared = {**problem.shards, **spec.shards}
        tensors = _tensors(problem)
        splits: dict[str, Split] = {}
        summed: set[str] = set()
        for name in declared:
            if name not in tensors:
                _refuse_unknown(spec, problem, name, tensors)
        for name, (dims, like) in tensors.items():
            said = name if name in declared else like
            if said not in declared:
                continue
            shard = declared[said]
            if not shard.sum:
                splits[name] = _split(spec, problem, said, shard, dims, world)
            elif said == name:
                summed.add(name)
        return cls(world, splits, frozenset(summed))

    def of_rank(self, problem: Problem, rank: int) -> Problem:
        """The problem of one rank's call of the entry: its shards and its arguments.

        Names other than tensors are those of the whole, such as `m` and `cu_seqlens_q`; names of
        the shard begin with `local_`. The problem has no reference, so that it can be sent to
        another process.
        """
        parts: dict[int, torch.Tensor] = {}

        def part(name: str, tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in parts:
                split = self.splits.get(name)
                parts[id(tensor)] = tensor.clone() if split is None else split.of(tensor, rank)
            return parts[id(tensor)]

        given = _given(problem)
        storage = problem.values.get("storage")
        mine = with_storage(
            storage, {name: part(name, tensor) for name, tensor in given.items()}, _shown(problem)
        )
        for name, layout in problem.layouts.items():
            mine |= with_storage(layout, {name: mine[name]}, [name])
        cotangents = {
            output: mine[_name_of(problem, tensor, f"d{output}")]
            for output, tensor in problem.cotangents.items()
        }
        names: dict[str, Any] = {**problem.names, **mine, "rank": rank, WORLD: self.world}
        names |= _local_names(problem, self.splits, rank)
        inputs = {name: mine[name] for name in problem.inputs}
        return Problem(
            values=dict(problem.values),
            names=names,
            inputs=inputs,
            outputs={},
            returns=problem.returns,
            cotangents=cotangents,
            gradient_of=dict(problem.gradient_of),
            autograd=problem.autograd,
            left_out=problem.left_out,
        )


def has_idle_rank(spec: Spec, problem: Problem) -> bool:
    """Whether a rank has nothing of a tensor of which others have a share."""
    counts = [
        [len(rows) for rows in split.rows] for split in Sharding.of(spec, problem).splits.values()
    ]
    return any(min(each) == 0 < max(each) for each in counts)


def with_owners(spec: Spec, problem: Problem) -> Problem:
    """Add the owning rank of each element to a problem's results, if its spec has ranks.

    Relations whose problems cannot be sharded are left out: a batch split in two may have lengths
    that the ranks do not divide.

    Raises:
        SpecError: the ranks cannot share the tensors as `shards` declares.
    """
    if not has_ranks(spec):
        return problem
    return _with_owners(spec, problem, Sharding.of(spec, problem))


def _with_owners(spec: Spec, problem: Problem, sharding: Sharding) -> Problem:
    owned: dict[tuple[int, tuple[int, ...]], tuple[Dim, Dim]] = {}

    def info(name: str) -> TensorInfo:
        made = problem.outputs[name]
        split = sharding.splits.get(name)
        if split is None or sharding.world == 1:
            return made
        dim = made.dims[split.axis]
        owner = split.owner(dim.size)
        # Results may share a dim object, whose regions are counted once.
        _, mine = owned.setdefault((id(dim), owner), (dim, replace(dim, owner=owner)))
        dims = (*made.dims[: split.axis], mine, *made.dims[split.axis + 1 :])
        return replace(made, dims=dims)

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            made = _sharded_relation(spec, relation)
            if made is not None:
                yield made

    outputs: Mapping[str, TensorInfo] = LazyMapping(problem.outputs, info)
    return replace(problem, outputs=outputs, relations=relations)


def _sharded_relation(spec: Spec, relation: Relation) -> Relation | None:
    """The relation with owners in its problems; None if the ranks cannot share them."""
    try:
        made = tuple(with_owners(spec, each) for each in relation.problems)
    except SpecError:
        return None
    return replace(relation, problems=made)


def rank_indices(spec: Spec, problem: Problem, tensor: str, dim: str) -> tuple[torch.Tensor, ...]:
    """For each rank its indices along a dimension of a tensor; empty if that is not sharded.

    Raises:
        SpecError: the ranks cannot share the tensors as `shards` declares.
    """
    split = Sharding.of(spec, problem).splits.get(tensor)
    if split is None or problem.dims[tensor][split.axis].name != dim:
        return ()
    return split.rows


def _local_names(problem: Problem, splits: Mapping[str, Split], rank: int) -> dict[str, Any]:
    """Lengths of a rank's queries and keys, by name.

    `local_seqlens_q`, `local_total_q` and `local_max_seqlen_q`, with `local_cu_seqlens_q` where
    sequences are packed and `local_seqlen_q` where not; those of keys end with k.
    """
    found: dict[str, Any] = {}
    for tensor, side in (("q", "q"), ("k", "k")):
        split, lengths = splits.get(tensor), problem.names.get(f"seqlens_{side}")
        if split is None or lengths is None or tensor not in problem.dims:
            continue
        if problem.dims[tensor][split.axis].name != "position":
            continue
        rows = split.rows[rank]
        if problem.dims[tensor][split.axis].starts is None:
            found[f"local_seqlen_{side}"] = len(rows)
            found[f"local_max_seqlen_{side}"] = len(rows)
            found[f"local_seqlens_{side}"] = [len(rows)] * len(lengths)
            continue
        ends = torch.tensor(list(itertools.accumulate(lengths)), dtype=torch.int64)
        counts = torch.bincount(torch.searchsorted(ends, rows, right=True), minlength=len(lengths))
        mine = [int(count) for count in counts]
        found[f"local_seqlens_{side}"] = mine
        found[f"local_total_{side}"] = len(rows)
        found[f"local_max_seqlen_{side}"] = max(mine, default=0)
        device = problem.inputs[tensor].device if tensor in problem.inputs else None
        starts = list(itertools.accumulate(mine, initial=0))
        found[f"local_cu_seqlens_{side}"] = torch.tensor(starts, dtype=torch.int32, device=device)
    return found


def _given(problem: Problem) -> dict[str, torch.Tensor]:
    """All tensors that the entry may get, by name: inputs, cotangents, saved tensors."""
    found = {name: value for name, value in problem.names.items() if _is_tensor(value)}
    found |= problem.inputs
    for output, tensor in problem.cotangents.items():
        found.setdefault(_name_of(problem, tensor, f"d{output}"), tensor)
    return found


def _shown(problem: Problem) -> list[str]:
    return [_name_of(problem, tensor, f"d{out}") for out, tensor in problem.cotangents.items()]


def _name_of(problem: Problem, tensor: torch.Tensor, default: str) -> str:
    """The name that a tensor has among the problem's."""
    mine = (name for name, value in problem.names.items() if value is tensor)
    return next(mine, default)


def _tensors(problem: Problem) -> dict[str, tuple[tuple[Dim, ...], str]]:
    """The dims of every tensor, and the name of the tensor that it is sharded like."""
    found = {name: (_dims(problem, name, tensor), name) for name, tensor in _given(problem).items()}
    found |= {name: (info.dims, name) for name, info in problem.outputs.items()}
    for gradient, name in problem.gradient_of.items():
        if gradient in found:
            found[gradient] = (found[gradient][0], name)
    for output, tensor in problem.cotangents.items():
        if output in problem.outputs:
            name = _name_of(problem, tensor, f"d{output}")
            found[name] = (problem.outputs[output].dims, output)
    return found


def _dims(problem: Problem, name: str, tensor: torch.Tensor) -> tuple[Dim, ...]:
    if name in problem.dims:
        return problem.dims[name]
    return tuple(Dim(f"dim{axis}", size) for axis, size in enumerate(tensor.shape))


def _refuse_unknown(spec: Spec, problem: Problem, name: str, tensors: Mapping[str, object]) -> None:
    """Raise for a name in `shards` without a tensor, which a family may lack in some cases."""
    optional = isinstance(spec.problem, str) and spec.problem in FAMILIES
    if optional or name in problem.names:
        return
    hint = suggestion(name, sorted(tensors), "Its tensors")
    raise refuse(spec, ("shards", name), f"shards: the problem has no tensor {name!r}{hint}")


def _split(
    spec: Spec, problem: Problem, name: str, shard: Shard, dims: tuple[Dim, ...], world: int
) -> Split:
    axis = _axis(spec, name, shard, dims)
    dim = dims[axis]
    if shard.own:
        if dim.size != world:
            message = f"{name}: {dim.name} is {dim.size}, and there are {world} ranks"
            raise refuse(spec, ("shards", name), f"shards: {message}")
        numbers = tuple(torch.tensor([rank]) for rank in range(world))
        return Split(axis, numbers, own=True)
    order = shard.order_of(problem.values)
    try:
        rows = owners(list(_lengths(dim)), world, order, shard.uneven)
    except UnevenError as error:
        parts = f"{error.count} chunks (zigzag)" if order == "zigzag" else f"{error.count} ranks"
        rule = f"{dim.name} % {'(2 * world)' if order == 'zigzag' else 'world'} == 0"
        rest = f"constraints: [{rule}]" if dim.name in spec.axes else "other lengths"
        message = (
            f"shards: {name}: {dim.name} is {error.length}, which {parts} cannot share evenly. "
            "If the entry takes such lengths, set uneven: balanced or uneven: ceil; if not, "
            f"exclude them with {rest}"
        )
        raise NotSharedError([spec.issue(("shards", name), message)]) from None
    return Split(axis, tuple(map(_indices, rows)))


def _axis(spec: Spec, name: str, shard: Shard, dims: tuple[Dim, ...]) -> int:
    if isinstance(shard.dim, int):
        if shard.dim >= len(dims):
            words = ", ".join(f"{axis} ({dim.name})" for axis, dim in enumerate(dims))
            message = f"shards: {name} has no dimension {shard.dim}; it has {words or 'none'}"
            raise refuse(spec, ("shards", name, "dim"), message)
        return shard.dim
    names = [dim.name for dim in dims]
    meant = str(shard.dim)
    for word in (meant, _ALIASES.get(meant)):
        if word in names:
            return names.index(word)
    hint = suggestion(meant, names, "Its dimensions")
    message = f"shards: {name} has no dimension {meant!r}{hint}"
    raise refuse(spec, ("shards", name, "dim"), message)


def _lengths(dim: Dim) -> Iterator[int]:
    """The lengths that are split along a dimension: of its sequences, or its own."""
    if dim.starts is None or dim.region is None:
        yield dim.size
        return
    ends = [*dim.starts, dim.size] if len(dim.starts) <= _regions(dim) else [*dim.starts]
    for begin, end in itertools.pairwise(ends):
        yield int(end) - int(begin)


def _regions(dim: Dim) -> int:
    return int(max(dim.region)) + 1 if dim.region else 0


def _indices(rows: list[range]) -> torch.Tensor:
    return torch.cat([torch.arange(each.start, each.stop) for each in rows])


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
