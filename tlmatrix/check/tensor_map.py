"""Maps the parameters of kernels to the tensors of a problem.

A parameter in the memory of an input is that input or a view of it. A tensor that the entry
allocated is assumed to be packed like a tensor of the problem with the same shape, unless the spec
declares its sequences (`sanitizers.sequences`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import torch

from tlmatrix.spec.issues import SpecError
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tlmatrix.interpreter import Report, Sequences
    from tlmatrix.problem.model import Dim, Problem, Tensors
    from tlmatrix.spec.model.spec import Spec

_Rows = tuple[tuple[int, ...], int]
"""Boundaries of sequences, and the dimension of rows."""


class TensorMap:
    """The tensors of one run of a problem, and the sequences of their rows.

    Raises:
        SpecError: the spec names boundaries that the problem does not have.
    """

    def __init__(self, spec: Spec, problem: Problem) -> None:
        self._own = {name: tensor for name, tensor in problem.inputs.items() if tensor.numel()}
        # Looked up for every parameter of every launch.
        self._by_memory: dict[int, str] = {}
        for name, tensor in self._own.items():
            self._by_memory.setdefault(tensor.untyped_storage().data_ptr(), name)
        self._dims: dict[str, tuple[Dim, ...]] = {
            **problem.dims,
            **{name: info.dims for name, info in problem.outputs.items()},
        }
        self._pools = {
            name: tensor
            for name, tensor in self._own.items()
            if name in self._dims and self._dims[name] and self._dims[name][0].name == "page"
        }
        self._declared = {
            name: (_boundaries(spec, problem, name, rows.boundaries), rows.dim)
            for name, rows in spec.sanitizers.sequences.items()
        }
        self._by_shape = _packed_shapes(self._dims.values())
        self._shapes = {tuple(dim.size for dim in dims) for dims in self._dims.values()}
        self._packed = {name: _packed(self._dims[name]) for name in self._own if name in self._dims}

    @property
    def has_pools(self) -> bool:
        """Whether an input is a pool of pages, [pages, page_size, ...]."""
        return bool(self._pools)

    def outside_pool(self, report: Report) -> bool:
        """Whether a report is of a page that a pool does not have."""
        if report.tensor is None or not report.index:
            return False
        name = name_of(report.tensor, self._pools)
        if name is None or report.tensor.shape != self._pools[name].shape:
            return False
        return not 0 <= report.index[0] < report.tensor.shape[0]

    def sequences(self, name: str, tensor: torch.Tensor) -> Sequences | None:
        """The sequences of the rows of a kernel's parameter; None if unknown."""
        from tlmatrix.interpreter import Sequences

        rows = self._rows(name, tensor)
        return None if rows is None else Sequences(*rows)

    def _rows(self, name: str, tensor: torch.Tensor) -> _Rows | None:
        own = None
        if tensor.numel():
            own = self._by_memory.get(tensor.untyped_storage().data_ptr())
        if own is not None and own in self._packed:
            rows = self._packed[own]
            axis = None if rows is None else _same_axis(tensor, self._own[own], rows[1])
            if rows is not None and axis is not None:
                return rows[0], axis
        if name in self._declared:
            return self._declared[name]
        if own is not None or not tensor.is_floating_point():
            return None
        found = self._by_shape.get(_without_ones(tensor.shape))
        if found is None:
            return None
        boundaries, position = found
        axis = [axis for axis, size in enumerate(tensor.shape) if size != 1][position]
        if tensor.shape[axis] == len(boundaries) - 1 and tuple(tensor.shape) not in self._shapes:
            return None  # as many rows as sequences: these may be rows of sequences
        return boundaries, axis

    def locate(self, report: Report, results: Tensors) -> tuple[str | None, dict[str, int]]:
        """The tensor that a report is about, and its element by named dimension.

        A tensor that is not the problem's has the kernel's name for it; memory of a block has none.
        """
        tensor = report.tensor
        if tensor is None:
            return None, {}
        known = {**self._own, **results}
        name = name_of(tensor, known)
        if len(report.index) != tensor.dim() or not all(
            0 <= at < size for at, size in zip(report.index, tensor.shape, strict=True)
        ):
            return name or report.buffer, {}
        if name is not None and name in self._dims:
            index = _index_in(known[name], tensor, report.index)
            return name, _described(self._dims[name], index)
        for dims in self._dims.values():
            if tuple(dim.size for dim in dims) == tuple(tensor.shape):
                return name or report.buffer, _described(dims, report.index)
        return name or report.buffer, {}


def _boundaries(spec: Spec, problem: Problem, name: str, source: str) -> tuple[int, ...]:
    value = problem.names.get(source)
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if not isinstance(value, list | tuple) or not all(isinstance(each, int) for each in value):
        path = ("sanitizers", "sequences", name)
        message = f"sanitizers: {source!r} is not a list of integers of the problem"
        names = [each for each, known in problem.names.items() if isinstance(known, torch.Tensor)]
        words = suggestion(source, sorted(names), "Its tensors")
        raise SpecError([spec.issue(path, message + words)])
    return tuple(value)


def _packed(dims: Sequence[Dim]) -> _Rows | None:
    for axis, dim in enumerate(dims):
        if dim.starts is not None:
            starts = tuple(int(start) for start in dim.starts)
            ended = len(starts) > 1 and starts[-1] == dim.size
            return (starts if ended else (*starts, dim.size)), axis
    return None


def _packed_shapes(known: Iterable[tuple[Dim, ...]]) -> Mapping[tuple[int, ...], _Rows]:
    """Rows by shape without dimensions of size one, if all tensors of that shape agree."""
    found: dict[tuple[int, ...], set[_Rows | None]] = defaultdict(set)
    for dims in known:
        shape = tuple(dim.size for dim in dims)
        rows = _packed(dims)
        if rows is not None:
            boundaries, axis = rows
            position = len(_without_ones(shape[:axis]))
            rows = None if shape[axis] == 1 else (boundaries, position)
        found[_without_ones(shape)].add(rows)
    agreed = {shape: next(iter(all_)) for shape, all_ in found.items() if len(all_) == 1}
    return {shape: rows for shape, rows in agreed.items() if rows is not None}


def _without_ones(shape: Iterable[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def name_of(tensor: torch.Tensor, known: Mapping[str, torch.Tensor]) -> str | None:
    """The name of the known tensor that shares the memory of `tensor`; None if there is none."""
    if not tensor.numel():
        return None
    storage = tensor.untyped_storage().data_ptr()
    for name, other in known.items():
        if other.numel() and other.untyped_storage().data_ptr() == storage:
            return name
    return None


def _same_axis(view: torch.Tensor, base: torch.Tensor, axis: int) -> int | None:
    """The dimension of a view that is dimension `axis` of its base."""
    if view.shape == base.shape and view.stride() == base.stride():
        return axis
    size, step = base.shape[axis], base.stride(axis)
    found = [k for k in range(view.dim()) if view.shape[k] == size and view.stride(k) == step]
    same = view.data_ptr() == base.data_ptr() and view.dtype == base.dtype
    return found[0] if same and len(found) == 1 and size > 1 else None


def _index_in(base: torch.Tensor, view: torch.Tensor, index: Sequence[int]) -> tuple[int, ...]:
    """The index into `base` of an element of a view; () if it has none."""
    if view.shape == base.shape and view.stride() == base.stride():
        return tuple(index)
    start = (view.data_ptr() - base.data_ptr()) // base.element_size()
    offset = start + sum(at * step for at, step in zip(index, view.stride(), strict=True))
    if view.dtype != base.dtype or not base.is_contiguous() or not 0 <= offset < base.numel():
        return ()
    return tuple(int(at) for at in np.unravel_index(offset, base.shape))


def _described(dims: Sequence[Dim], index: Sequence[int]) -> dict[str, int]:
    if len(dims) != len(index):
        return {}
    found: dict[str, int] = {}
    for dim, at in zip(dims, index, strict=True):
        found |= dim.describe(at)
    return found
