"""Rounding that a launch takes over from earlier ones: how far each tensor they wrote moves it.

The launches that an element depends on run again in float64, each on the float64 results of those
before it. Then they run once more for each tensor between two launches, with the values that the
kernel really stored there: the change of the element is what that rounding does to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.watch.recorders import Keeper

from .launches import memory_of
from .model import Carried, Rounding

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .launches import Launch, LaunchLog

_MOST = 12
"""Most tensors between launches that are followed."""

_ROUNDING = 0.5
"""Relative difference of a whole tensor that rounding explains, even in dtypes of 4 bits."""
_UNDERFLOW = 1e-6

Stored = tuple[int, str]
"""A tensor that a launch wrote: the number of the launch, and the parameter."""


def carried_rounding(log: LaunchLog, launch: Launch, buffer: str, index: Sequence[int]) -> Rounding:
    """How much the rounding of earlier launches changes an element of the last one, `launch`."""
    launches = _needed(log, launch)
    if len(launches) < 2:
        return Rounding()
    stored = [(each.number, name) for each in launches[:-1] for name in sorted(each.written)]
    stored = [at for at in stored if _read_later(at, launches)]
    if not stored or len(stored) > _MOST:
        return Rounding(why=f"{len(stored)} tensors between launches" if stored else "")
    try:
        exact = _element(launches, buffer, index, ())
        moved = [(at, _element(launches, buffer, index, {at}) - exact) for at in stored]
    except (Unsupported, InterpreterError) as error:
        return Rounding(why=str(error).splitlines()[0])
    by_number = {each.number: each for each in launches}
    found = [
        Carried(str(by_number[number]), name, _dtype(by_number[number], name), change)
        for (number, name), change in moved
    ]
    return Rounding(exact, tuple(sorted(found, key=lambda each: -abs(each.change))))


def _dtype(launch: Launch, name: str) -> str:
    return str(launch.live[name].dtype).removeprefix("torch.")


def _floats(launch: Launch) -> dict[str, torch.Tensor]:
    """The floating-point arguments, as they were before the launch."""
    return {
        name: value
        for name, value in launch.before.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    }


def _reads(launch: Launch) -> set[int]:
    """The memory that a launch reads."""
    usage = launch.kernel.usage
    reading = {"read", "atomic", "ordered"}
    return {
        memory_of(launch.live[n]) for n in _floats(launch) if usage.get(n, frozenset()) & reading
    }


def _writes(launch: Launch) -> set[int]:
    return {memory_of(launch.live[n]) for n in _floats(launch) if n in launch.written}


def _needed(log: LaunchLog, last: Launch) -> list[Launch]:
    """The launches whose results reach the last one, in order."""
    wanted, found = _reads(last) | _writes(last), [last]
    for launch in reversed(log.launches[: last.number - 1]):
        if launch.rank == last.rank and wanted & _writes(launch):
            wanted |= _reads(launch)
            found.append(launch)
    return found[::-1]


def _read_later(at: Stored, launches: Sequence[Launch]) -> bool:
    number, name = at
    (maker,) = (each for each in launches if each.number == number)
    if name not in _floats(maker):
        return False
    memory = memory_of(maker.live[name])
    return any(memory in _reads(each) for each in launches if each.number > number)


@dataclass(frozen=True)
class _Shadow:
    """The float64 contents of a storage, and the version of its tensors that PyTorch counts."""

    values: torch.Tensor
    version: int


def _element(
    launches: Sequence[Launch], buffer: str, index: Sequence[int], stored: Collection[Stored]
) -> float:
    """The element after float64 runs of the launches; those of `stored` keep what was stored."""
    shadows: dict[int, _Shadow] = {}
    result = None
    for launch in launches:
        record = launch.kernel.recorded(wide=True)
        keeper = Keeper(record)
        arguments = {**launch.before, **_shadowed(launch, shadows)}
        launch.kernel.run_recorded(arguments, launch.symbols, keeper, wide=True)
        for name in launch.written & _floats(launch).keys():
            array = keeper.arrays.get(record.memories[name])
            if array is None:
                continue
            tensor = launch.live[name]
            if launch is launches[-1]:
                if name == buffer:
                    result = float(array[tuple(index)])
                continue
            if (launch.number, name) in stored:
                shadows.pop(memory_of(tensor), None)
                continue
            known = shadows.get(memory_of(tensor))
            values = _whole(tensor).double() if known is None else known.values
            view = values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            view.copy_(torch.from_numpy(array))
            shadows[memory_of(tensor)] = _Shadow(values, launch.unchanged[name])
    if result is None:
        raise Unsupported(f"a float64 run of {launches[-1]} does not write {buffer}")
    return result


def _shadowed(launch: Launch, shadows: dict[int, _Shadow]) -> dict[str, Any]:
    """The arguments that earlier launches wrote, in float64; not those that PyTorch changed."""
    found: dict[str, Any] = {}
    for name, value in _floats(launch).items():
        live = launch.live[name]
        shadow = shadows.get(memory_of(live))
        if shadow is not None and shadow.version == launch.unchanged[name]:
            view = shadow.values.as_strided(value.shape, live.stride(), live.storage_offset())
            if _far(view, value.double()):
                raise Unsupported(f"a float64 run gives far other values of {name} of {launch}")
            found[name] = view.contiguous()
    return found


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of a tensor, as a row of its elements."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def _far(exact: torch.Tensor, stored: torch.Tensor) -> bool:
    """Whether rounding does not explain the difference: memory changed in another way."""
    finite = exact.isfinite() & stored.isfinite()
    error = torch.linalg.vector_norm((exact - stored)[finite])
    return bool(error > _ROUNDING * torch.linalg.vector_norm(exact[finite]) + _UNDERFLOW)
