"""Launches kept to be run again: what a kernel was called with, as it was then.

A launch is explained by running it again, on copies of its arguments. So the contents that a
tensor had before a launch changed it are kept, unless nothing reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.interpreter.program import Record


class NotMadeError(LookupError):
    """No launch wrote the element that is asked for."""


class Kernel(Protocol):
    """A kernel that can be run again, recorded."""

    name: str
    waits: bool

    @property
    def usage(self) -> Mapping[str, frozenset[str]]:
        """What it does with each parameter: "read", "write", "atomic"."""

    def recorded(self, *, wide: bool) -> Record:
        """What a recorder of it needs to know; with `wide` every float is a float64."""

    def run_recorded(
        self, values: Mapping[str, Any], symbols: Mapping[str, int], recorder: Any, *, wide: bool
    ) -> None:
        """Run it recorded."""


@dataclass
class Launch:
    """A kernel that ran.

    Attributes:
        number: from 1, in its context.
        kernel: the kernel.
        symbols: its symbolic dims.
        live: its arguments, as they are now.
        before: its arguments as they were.
        written: names of the parameters that it writes.
        unchanged: of each argument the version that PyTorch counts.
        rank: the simulated rank that called it; None outside a simulation.
    """

    number: int
    kernel: Kernel
    symbols: Mapping[str, int]
    live: dict[str, Any]
    before: dict[str, Any]
    written: frozenset[str]
    unchanged: dict[str, int] = field(default_factory=dict)
    rank: int | None = None

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        return f"launch {self.number}{where}, {self.kernel.name}"

    def ended(self) -> None:
        """Keep the inputs as they are at the end: flags were set while the kernel ran."""
        if not self.kernel.waits:
            return
        for name, tensor in self.live.items():
            if isinstance(tensor, torch.Tensor) and name not in self.written:
                self.before[name] = tensor.clone()

    def changed_since(self) -> list[str]:
        """Arguments that PyTorch has changed in place since the launch."""
        return [
            name
            for name, version in self.unchanged.items()
            if self.before[name] is self.live[name] and self.live[name]._version != version  # noqa: SLF001 - PyTorch has no other name for it
        ]


class LaunchLog:
    """The launches of one context, in order."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def before(
        self,
        kernel: Kernel,
        values: Mapping[str, Any],
        symbols: Mapping[str, int],
        rank: int | None = None,
    ) -> Launch:
        """Note a launch that is about to run."""
        usage = kernel.usage
        tensors = {n: v.detach() for n, v in values.items() if isinstance(v, torch.Tensor)}
        held = {memory_of(t) for launch in self.launches for t in _tensors(launch.before.values())}
        before: dict[str, Any] = dict(values) | tensors
        written = frozenset(n for n, actions in usage.items() if actions & {"write", "atomic"})
        saved: dict[int, torch.Tensor] = {}
        for name in sorted(written & tensors.keys()):
            tensor = tensors[name]
            names = {n for n, t in tensors.items() if memory_of(t) == memory_of(tensor)}
            read = any(usage.get(n, frozenset()) & {"read", "atomic", "ordered"} for n in names)
            if not read and memory_of(tensor) not in held:
                continue
            copy = tensor.clone()
            saved[memory_of(tensor)] = copy
            if read:
                before[name] = copy
            self._freeze(tensor, copy)
        for name, tensor in tensors.items():
            # What is read through another name is the same memory, as it was before.
            if name not in written and memory_of(tensor) in saved:
                before[name] = tensor.clone()
        launch = Launch(
            len(self.launches) + 1,
            kernel,
            dict(symbols),
            dict(values) | tensors,
            before,
            written & tensors.keys(),
            {name: tensor._version for name, tensor in tensors.items()},  # noqa: SLF001 - as above
            rank,
        )
        self.launches.append(launch)
        return launch

    def _freeze(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        """Earlier launches keep the contents of a tensor that is about to change."""
        for launch in self.launches:
            for name, held in launch.before.items():
                if (
                    isinstance(held, torch.Tensor)
                    and held is launch.live[name]
                    and memory_of(held) == memory_of(tensor)
                ):
                    same = held.shape == tensor.shape and held.stride() == tensor.stride()
                    launch.before[name] = copy if same else held.clone()

    def find(
        self, tensor: torch.Tensor, index: Sequence[int], *, until: int | None = None
    ) -> tuple[Launch, str, tuple[int, ...]]:
        """The last launch that has written an element of a tensor: launch, parameter, index.

        Launches from number `until` on are left out.

        Raises:
            NotMadeError: no kernel of the context wrote it.
        """
        address = _address(tensor, index)
        for launch in reversed(self.launches[: None if until is None else until - 1]):
            for name in sorted(launch.written):
                place = _index_of(launch.live[name], address)
                if place is not None:
                    return launch, name, place
        raise NotMadeError(
            f"no kernel wrote the element {list(index)}: PyTorch made it, from what kernels wrote"
            if self.launches
            else f"no kernel ran that could have written the element {list(index)}"
        )

    def makers(self, tensor: torch.Tensor, until: int) -> list[tuple[Launch, str]]:
        """The launches before number `until` that wrote memory of a tensor, the last first."""
        memory = memory_of(tensor)
        return [
            (launch, name)
            for launch in reversed(self.launches[: until - 1])
            for name in sorted(launch.written)
            if memory_of(launch.live[name]) == memory
        ]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage."""
    return int(tensor.untyped_storage().data_ptr())


def _address(tensor: torch.Tensor, index: Sequence[int]) -> int:
    offset = sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
    return int(tensor.data_ptr()) + offset * tensor.element_size()


def _index_of(tensor: torch.Tensor, address: int) -> tuple[int, ...] | None:
    """The index of the element at an address, for a tensor without overlaps."""
    rest, uneven = divmod(address - int(tensor.data_ptr()), tensor.element_size())
    if rest < 0 or uneven or not tensor.numel():
        return None
    place = [0] * tensor.dim()
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    for axis in order:
        if tensor.shape[axis] > 1 and tensor.stride(axis):
            place[axis], rest = divmod(rest, tensor.stride(axis))
    inside = all(0 <= i < n for i, n in zip(place, tensor.shape, strict=True))
    return tuple(place) if inside and rest == 0 else None
