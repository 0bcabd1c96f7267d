"""Guards: canaries around every buffer, and poison in uninitialized memory.

Inside `guarded`, inputs are copied to buffers with canaries on both sides, and so is everything
that the entry allocates through PyTorch (`torch.empty`, `zeros`, `new_empty`, ..., also in a
backward pass and in TileLang). Uninitialized memory holds poison (`tlmatrix.check.memory`).
Afterwards the canaries and the inputs must be unchanged, and no result may share an input's memory.

Canaries are NaN in every floating dtype, so a read beyond a buffer makes results NaN.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tlmatrix.check.finding import Finding
from tlmatrix.check.memory import CANARY, as_row, extent_of, fill_poison, same_bits, which_differ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from tlmatrix.problem.model import Problem, Tensors

ALIGNMENT = 512
"""Bytes; the same as PyTorch's CUDA allocator. TMA needs 16."""

_PAD = 4096
"""Bytes of canary on each side; a multiple of ALIGNMENT, longer than a row of most tensors."""

_LARGE = 2**16
"""Size in bytes above which filling only the canaries is faster than filling the whole buffer."""

_aten = torch.ops.aten
_WITHOUT_VALUES = (
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)
_WITH_VALUES = (
    _aten.zeros.default,
    _aten.zeros_like.default,
    _aten.new_zeros.default,
    _aten.ones.default,
    _aten.ones_like.default,
    _aten.new_ones.default,
    _aten.full.default,
    _aten.full_like.default,
    _aten.new_full.default,
)
_SETS_VALUES = {id(op): op in _WITH_VALUES for op in (*_WITHOUT_VALUES, *_WITH_VALUES)}
"""Whether an allocating operator sets values, by its identity: its own hash is slow."""


@dataclass
class _GuardedBuffer:
    """A guarded buffer: memory as int16 in `halves`, with the payload in bytes [start, end)."""

    halves: torch.Tensor
    start: int
    end: int
    label: Callable[[], str]
    itemsize: int

    @property
    def memory(self) -> torch.Tensor:
        """The memory as bytes."""
        return self.halves.view(torch.uint8)

    @property
    def payload(self) -> torch.UntypedStorage:
        """The bytes of the buffer as a storage of their own.

        A view would have a storage offset, and PyTorch assumes that fresh memory has none (in the
        backward of an in-place slice assignment).
        """
        own: torch.UntypedStorage = self.halves.untyped_storage()[self.start : self.end]
        return own

    @property
    def sides(self) -> torch.Tensor:
        """The canaries before and after, [2, _PAD / 2] in int16."""
        # Aligned to two bytes, so that every canary starts with the same byte of the pattern.
        end = self.end + self.end % 2
        begin = self.start - _PAD
        return self.halves.as_strided((2, _PAD // 2), ((end - begin) // 2, 1), begin // 2)

    @property
    def odd_byte_hit(self) -> bool:
        """Whether the byte that `sides` skips after the payload was overwritten."""
        return self.end % 2 == 1 and int(self.memory[self.end]) != CANARY >> 8 & 0xFF


@dataclass(frozen=True)
class _Moved:
    """An input or cotangent, its copy between canaries, and the elements of memory before both."""

    name: str
    before: torch.Tensor
    after: torch.Tensor
    lead: int
    cotangent: bool

    @property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The memory of both, including the elements before them."""
        return as_row(self.before, self.lead), as_row(self.after, self.lead)

    def shared_by(self, results: Tensors) -> list[Finding]:
        """A finding for each result in the memory of the copy, unless it is a cotangent's.

        Autograd passes a cotangent on where the derivative is one.
        """
        memory = self.after.untyped_storage().data_ptr()
        return [
            _shared_input(self.name, name)
            for name, tensor in results.items()
            if not self.cotangent
            and tensor.numel()
            and tensor.untyped_storage().data_ptr() == memory
        ]


class Guards:
    """The guarded buffers of one run."""

    def __init__(self, *, poison: bool = True) -> None:
        self._buffers: list[_GuardedBuffer] = []
        self._moved: list[_Moved] = []
        self._poison = poison

    def move(self, name: str, tensor: torch.Tensor, *, cotangent: bool = False) -> torch.Tensor:
        """Copy `tensor` between canaries with the same bits, sizes, strides and requires_grad.

        Its offset from an aligned address is the storage offset of `tensor`.
        """
        if not _plain(tensor):
            return tensor
        lead = lead_of(tensor)
        copy = self._allocate(tensor, lambda: f"input {name}", lead)
        as_row(copy, lead).copy_(as_row(tensor, lead))
        self._moved.append(_Moved(name, tensor.detach(), copy, lead, cotangent))
        return copy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copy

    def allocated(self, tensor: torch.Tensor, *, values: bool) -> torch.Tensor:
        """A guarded replacement of the fresh `tensor`; `values` is whether it is initialized."""
        if not _plain(tensor):
            return tensor
        file, line = _caller()
        dtype, shape = tensor.dtype, tensor.shape

        def label() -> str:
            kind = str(dtype).removeprefix("torch.")
            return f"the {kind} buffer {list(shape)} allocated at {Path(file).name}:{line}"

        guarded = self._allocate(tensor, label)
        if values:
            as_row(guarded).copy_(as_row(tensor))
        elif self._poison:
            fill_poison(guarded)
        else:
            as_row(guarded).zero_()
        return guarded

    def findings(self, results: Tensors) -> list[Finding]:
        """Findings about overwritten canaries, changed inputs, and results in their memory.

        `results` name the buffers of findings.
        """
        found = [self._describe(buffer, results) for buffer in self._overwritten()]
        changed = which_differ([each.rows for each in self._moved])
        for each, hit in zip(self._moved, changed, strict=True):
            found += [_changed_input(each)] if hit else each.shared_by(results)
        return found

    def _allocate(
        self, like: torch.Tensor, label: Callable[[], str], lead: int = 0
    ) -> torch.Tensor:
        """Allocate a guarded tensor with the layout of `like`, and `lead` elements before it."""
        extent = (lead + extent_of(like)) * like.element_size()
        room = _PAD + -(-(extent + 1) // ALIGNMENT) * ALIGNMENT + _PAD
        halves = torch.empty((room + ALIGNMENT) // 2, dtype=torch.int16, device=like.device)
        start = -halves.data_ptr() % ALIGNMENT + _PAD
        if extent > _LARGE:
            # The caller fills the payload.
            halves[: start // 2].fill_(CANARY)
            halves[(start + extent) // 2 :].fill_(CANARY)
        else:
            halves.fill_(CANARY)
        buffer = _GuardedBuffer(halves, start, start + extent, label, like.element_size())
        self._buffers.append(buffer)
        result = torch.empty(0, dtype=like.dtype, device=like.device)
        return result.set_(buffer.payload, lead, like.size(), like.stride())

    def _overwritten(self) -> list[_GuardedBuffer]:
        by_device: dict[torch.device, list[_GuardedBuffer]] = {}
        for buffer in self._buffers:
            by_device.setdefault(buffer.halves.device, []).append(buffer)
        found = []
        for buffers in by_device.values():
            canaries = torch.cat([buffer.sides for buffer in buffers])
            # One comparison for all buffers, and so one synchronization on a GPU.
            if same_bits(canaries, torch.full_like(canaries, CANARY)):
                found += [buffer for buffer in buffers if buffer.odd_byte_hit]
                continue
            broken = (canaries != CANARY).any(1).reshape(-1, 2).any(1).tolist()
            found += [
                buffer
                for buffer, hit in zip(buffers, broken, strict=True)
                if hit or buffer.odd_byte_hit
            ]
        return found

    def _describe(self, buffer: _GuardedBuffer, results: Tensors) -> Finding:
        names = [
            name
            for name, tensor in results.items()
            if tensor.numel()
            and tensor.untyped_storage().data_ptr() == buffer.halves.data_ptr() + buffer.start
        ]
        label = names[0] if names else buffer.label()
        before, after = map(_hits, buffer.sides)
        after = [offset + buffer.end % 2 for offset in after]
        if buffer.odd_byte_hit:
            after.insert(0, 0)
        parts = []
        if after:
            first, last = after[0] // buffer.itemsize, after[-1] // buffer.itemsize
            parts.append(f"elements {first}-{last} past the end of {label}")
        if before:
            first, last = (_PAD - before[-1] - 1) // buffer.itemsize + 1, _PAD - before[0]
            parts.append(f"elements {first}-{-(-last // buffer.itemsize)} before {label}")
        return Finding(
            check="guards",
            title=f"out-of-bounds write: {' and '.join(parts)} were overwritten",
            tensor=names[0] if names else None,
            pattern="past the end" if after else "before the start",
            wrong=len({offset // buffer.itemsize for offset in after})
            + len({offset // buffer.itemsize for offset in before}),
            where=" and ".join(parts),
            hint="bound the store by the size of the buffer" if after else None,
            detail=buffer.label() if names else None,
        )


class _GuardMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's __init_subclass__
    """Guards the results of allocating operators, also in threads of autograd."""

    def __init__(self, guards: Guards) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guards = guards

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: skipping would import torch.compile, which takes a second."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - PyTorch's protocol
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        values = _SETS_VALUES.get(id(func))
        return result if values is None else self._guards.allocated(result, values=values)


class _GuardModeUncompiled(_GuardMode):  # type: ignore[no-untyped-call] # as above
    """The mode if torch.compile is in use, which must not trace it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    __torch_dispatch__ = _GuardMode.__torch_dispatch__  # PyTorch looks for it in the class itself


@contextmanager
def guarded(problem: Problem, *, poison: bool = True) -> Iterator[tuple[Problem, Guards]]:
    """Yield the problem with inputs between canaries, and guard allocations inside.

    Without `poison`, fresh memory holds zeros; a result that changes then depends on uninitialized
    memory.
    """
    guards = Guards(poison=poison)
    moved = {
        id(tensor): guards.move(name, tensor, cotangent=name in problem.cotangents)
        for name, tensor in {**problem.inputs, **problem.cotangents}.items()
    }

    inside = problem.map_tensors(lambda tensor: moved.get(id(tensor), tensor))
    with allocations_guarded(guards):
        yield inside, guards


def allocations_guarded(guards: Guards | None = None) -> AbstractContextManager[object]:
    """Guard the memory that PyTorch allocates inside."""
    mode = _GuardModeUncompiled if "torch._dynamo" in sys.modules else _GuardMode
    return mode(Guards() if guards is None else guards)


def lead_of(tensor: torch.Tensor) -> int:
    """The number of elements from an aligned address to the first element; 0 if there is none."""
    if not tensor.numel():
        return 0  # the offset of an empty part may be past the end of its storage
    return int(tensor.storage_offset()) % (ALIGNMENT // tensor.element_size())


def _plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is an ordinary strided one with elements."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.numel() > 0  # an empty one may be resized later
        and not tensor.is_complex()
        and not tensor.is_quantized
    )


def _caller() -> tuple[str, int]:
    """File and line of the nearest frame outside PyTorch and this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack costs milliseconds
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("torch.", "tlmatrix.check.")) and module != "torch":
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _hits(canary: torch.Tensor) -> list[int]:
    """Byte offsets at which a canary was overwritten."""
    offsets: list[int] = ((canary != CANARY).nonzero().flatten() * 2).tolist()
    return offsets


def _shared_input(name: str, result: str) -> Finding:
    return Finding(
        check="guards",
        title=f"the result {result} is in the memory of the input {name}",
        tensor=result,
        pattern="shared with an input",
        hint="return a copy: a write to one changes the other; if that is intended, "
        f"`call: [{{inout: {name}, output: {result}}}]` says so",
    )


def _changed_input(moved: _Moved) -> Finding:
    name = moved.name
    before, after = moved.rows
    changed = before != after
    first = int(changed.nonzero()[0])
    dtype = moved.before.dtype
    return Finding(
        check="guards",
        title=f"the entry changed its input {name}: {int(changed.sum())} of {changed.numel()} "
        f"elements, the first at offset {first - moved.lead}",
        tensor=name,
        index={"offset": first - moved.lead},
        expected=float(before.view(dtype)[first]),
        got=float(after.view(dtype)[first]),
        wrong=int(changed.sum()),
        total=changed.numel(),
        pattern="input changed",
        hint="write to a copy; if the change is intended, `call: [{inout: x, output: y}]` says so",
    )
