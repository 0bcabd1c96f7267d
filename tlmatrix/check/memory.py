"""Memory that shows misuse: canaries around every buffer, and NaN in what nobody has written.

Inside `guarded`, the inputs lie in buffers of their own with canaries on both sides, and so does
everything that the entry allocates through PyTorch (`torch.empty`, `zeros`, `new_empty`, …,
also in a backward pass, also where TileLang allocates the outputs). Memory that was asked for
without values holds a NaN of a bit pattern that no arithmetic yields, so an element nobody wrote
is told from a NaN that was computed. Afterwards the canaries must be intact and the inputs
bit-unchanged.

The canaries are NaN in every floating dtype too, so a value read from beyond a buffer shows.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tlmatrix.check.bits import alike
from tlmatrix.check.finding import Finding
from tlmatrix.check.poison import CANARY, as_row, extent_of, fill_poison

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from tlmatrix.problem.model import Problem, Tensors

__all__ = ["Guards", "allocations_guarded", "guarded"]

ALIGNMENT = 512
"""Bytes; what PyTorch's CUDA allocator gives, and more than TMA's 16."""

_PAD = 4096
"""Bytes of canary on either side; a multiple of ALIGNMENT, and more than a row of most tensors."""

_LARGE = 2**16
"""Bytes of a buffer from which on filling its canaries alone costs less than filling all of it."""

_aten = torch.ops.aten
_WITHOUT_VALUES = frozenset(
    {
        _aten.empty.memory_format,
        _aten.empty_strided.default,
        _aten.empty_like.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
    }
)
_WITH_VALUES = frozenset(
    {
        _aten.zeros.default,
        _aten.zeros_like.default,
        _aten.new_zeros.default,
        _aten.ones.default,
        _aten.ones_like.default,
        _aten.new_ones.default,
        _aten.full.default,
        _aten.full_like.default,
        _aten.new_full.default,
    }
)


@dataclass
class _Fence:
    """One guarded buffer: `halves`, memory in int16, with the payload in the bytes [start, end)."""

    halves: torch.Tensor
    start: int
    end: int
    label: Callable[[], str]
    itemsize: int

    @property
    def memory(self) -> torch.Tensor:
        """In bytes."""
        return self.halves.view(torch.uint8)

    @property
    def payload(self) -> torch.UntypedStorage:
        """The buffer's own bytes, as a storage that begins and ends with them.

        A view would have an offset into its storage, and PyTorch itself assumes that fresh
        memory has none (the backward of an in-place slice assignment does).
        """
        own: torch.UntypedStorage = self.halves.untyped_storage()[self.start : self.end]
        return own

    @property
    def sides(self) -> torch.Tensor:
        """The canaries before and after, [2, _PAD / 2] in int16."""
        # From an even byte, so that every canary starts with the same half of the pattern.
        end = self.end + self.end % 2
        begin = self.start - _PAD
        return self.halves.as_strided((2, _PAD // 2), ((end - begin) // 2, 1), begin // 2)

    @property
    def before(self) -> torch.Tensor:
        return self.sides[0]

    @property
    def after(self) -> torch.Tensor:
        return self.sides[1]

    @property
    def odd_byte_hit(self) -> bool:
        """Whether the byte that `after` skips was overwritten."""
        return self.end % 2 == 1 and int(self.memory[self.end]) != CANARY >> 8 & 0xFF


@dataclass(frozen=True)
class _Moved:
    """An input, its copy between canaries, and how many elements of memory lie before both."""

    name: str
    before: torch.Tensor
    after: torch.Tensor
    lead: int

    @property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The memory of both, from the elements before them."""
        return as_row(self.before, self.lead), as_row(self.after, self.lead)


class Guards:
    """The guarded buffers of one run, and what became of them."""

    def __init__(self, *, poison: bool = True) -> None:
        self._fences: list[_Fence] = []
        self._moved: list[_Moved] = []
        self._poison = poison

    def move(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of `tensor` between canaries: same bits, sizes, strides and requires_grad.

        It is as far from an aligned address as `tensor` is from the start of its memory.
        """
        if not _plain(tensor):
            return tensor
        lead = int(tensor.storage_offset()) % (ALIGNMENT // tensor.element_size())
        copy = self._allocate(tensor, lambda: f"input {name}", lead)
        as_row(copy, lead).copy_(as_row(tensor, lead))
        self._moved.append(_Moved(name, tensor.detach(), copy, lead))
        return copy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copy

    def allocated(self, tensor: torch.Tensor, *, values: bool) -> torch.Tensor:
        """What to hand out in place of `tensor`, just allocated, with its `values` or without."""
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
        """Overwritten canaries and changed inputs; `results` give buffers their names."""
        found = [self._describe(fence, results) for fence in self._overwritten()]
        return found + [_changed_input(each) for each in self._moved if not alike(*each.rows)]

    def _allocate(
        self, like: torch.Tensor, label: Callable[[], str], lead: int = 0
    ) -> torch.Tensor:
        """Memory for a tensor like another one, and for `lead` elements before it."""
        extent = (lead + extent_of(like)) * like.element_size()
        room = _PAD + -(-(extent + 1) // ALIGNMENT) * ALIGNMENT + _PAD
        halves = torch.empty((room + ALIGNMENT) // 2, dtype=torch.int16, device=like.device)
        start = -halves.data_ptr() % ALIGNMENT + _PAD
        if extent > _LARGE:
            # What lies between is filled by who asked for it.
            halves[: start // 2].fill_(CANARY)
            halves[(start + extent) // 2 :].fill_(CANARY)
        else:
            halves.fill_(CANARY)
        fence = _Fence(halves, start, start + extent, label, like.element_size())
        self._fences.append(fence)
        result = torch.empty(0, dtype=like.dtype, device=like.device)
        return result.set_(fence.payload, lead, like.size(), like.stride())

    def _overwritten(self) -> list[_Fence]:
        by_device: dict[torch.device, list[_Fence]] = {}
        for fence in self._fences:
            by_device.setdefault(fence.halves.device, []).append(fence)
        found = []
        for fences in by_device.values():
            canaries = torch.cat([fence.sides for fence in fences])
            # One comparison, and on a GPU one wait, for all buffers.
            if alike(canaries, torch.full_like(canaries, CANARY)):
                found += [fence for fence in fences if fence.odd_byte_hit]
                continue
            broken = (canaries != CANARY).any(1).reshape(-1, 2).any(1).tolist()
            found += [
                fence
                for fence, hit in zip(fences, broken, strict=True)
                if hit or fence.odd_byte_hit
            ]
        return found

    def _describe(self, fence: _Fence, results: Tensors) -> Finding:
        names = [
            name
            for name, tensor in results.items()
            if tensor.numel()
            and tensor.untyped_storage().data_ptr() == fence.halves.data_ptr() + fence.start
        ]
        label = names[0] if names else fence.label()
        before = _hits(fence.before)
        after = [offset + fence.end % 2 for offset in _hits(fence.after)]
        if fence.odd_byte_hit:
            after.insert(0, 0)
        parts = []
        if after:
            first, last = after[0] // fence.itemsize, after[-1] // fence.itemsize
            parts.append(f"elements {first}-{last} past the end of {label}")
        if before:
            first, last = (_PAD - before[-1] - 1) // fence.itemsize + 1, _PAD - before[0]
            parts.append(f"elements {first}-{-(-last // fence.itemsize)} before {label}")
        return Finding(
            check="guards",
            title=f"a write outside of {label}: {' and '.join(parts)} were overwritten",
            tensor=names[0] if names else None,
            pattern="past the end" if after else "before the start",
            wrong=len({offset // fence.itemsize for offset in after})
            + len({offset // fence.itemsize for offset in before}),
            where=" and ".join(parts),
            hint="a store that is not guarded by the length: a full tile at the last rows"
            if after
            else "a negative index",
            detail=fence.label() if names else None,
        )


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's __init_subclass__
    """Replaces what allocating operators return; autograd carries it to its own threads."""

    def __init__(self, guards: Guards) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guards = guards

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: what keeps torch.compile out of a mode imports all of it first, for a second."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - PyTorch's protocol
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        if func in _WITHOUT_VALUES:
            return self._guards.allocated(result, values=False)
        if func in _WITH_VALUES:
            return self._guards.allocated(result, values=True)
        return result


class _ModeBesideCompiled(_Mode):  # type: ignore[no-untyped-call] # as above
    """The mode where something may be compiled, which must not trace it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    __torch_dispatch__ = _Mode.__torch_dispatch__  # what PyTorch looks for to keep it out


@contextmanager
def guarded(problem: Problem, *, poison: bool = True) -> Iterator[tuple[Problem, Guards]]:
    """The same problem with its inputs between canaries, and allocations guarded inside.

    With `poison` false, memory without values starts as zeros: where that changes a result, the
    entry reads what it never wrote.
    """
    guards = Guards(poison=poison)
    moved = {
        id(tensor): guards.move(name, tensor)
        for name, tensor in {**problem.inputs, **problem.cotangents}.items()
    }

    def place(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: moved.get(id(value), value) for name, value in values.items()}

    inside = replace(
        problem,
        names=place(problem.names),
        inputs=place(problem.inputs),
        cotangents=place(problem.cotangents),
    )
    with allocations_guarded(guards):
        yield inside, guards


def allocations_guarded(guards: Guards | None = None) -> AbstractContextManager[object]:
    """Inside, memory that PyTorch allocates lies between canaries of `guards`."""
    mode = _ModeBesideCompiled if "torch._dynamo" in sys.modules else _Mode
    return mode(Guards() if guards is None else guards)


def _plain(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary strided tensor with memory of its own."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.numel() > 0  # one without elements may be resized by who asked for it
        and not tensor.is_complex()
        and not tensor.is_quantized
    )


def _caller() -> tuple[str, int]:
    """File and line of the nearest frame outside PyTorch and this package: the entry's."""
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
        hint="an in-place operation on an argument, or a store through the wrong pointer",
    )
