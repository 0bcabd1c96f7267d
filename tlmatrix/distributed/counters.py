"""Advances what a context counts, as if it had made very many calls.

Epochs and flags grow with each call, and pass 2^31 after days that no test has. Under simulation
all ranks share a process: the integers of their contexts, and those in memory that the contexts
hold, are read after each of some equal calls. What grows by a constant in each two of these (double
buffers alternate) is then advanced alike, as far as one flag in memory still is below 2^31.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FIRST = 2
"""Calls before the first reading: they allocate buffers and fill caches."""
OBSERVED = 5
"""Equal calls from which the growth is read."""
_NEAR = 8
"""Pairs of calls that are skipped to see whether skipping works at all."""
_DEPTH = 5
_LARGEST = 1 << 20
"""Bytes of the largest memory that may hold flags."""
_STEP = 1 << 24
"""The most that a flag grows in two calls; what grows faster is data."""
_FOREIGN = ("torch", "tlmatrix", "builtins", "numpy", "tilelang")
"""Packages whose objects hold no counters of an operator."""


class NotLinearError(Exception):
    """A counter of a context does not grow by a constant, or cannot be advanced."""


@dataclass
class Counters:
    """The counters of all ranks' contexts, read after each call.

    Attributes:
        far: whether they are advanced to 2^31, or by a few calls.
        contexts: those of the ranks that have made the calls so far.
    """

    far: bool
    contexts: dict[int, Any] = field(default_factory=dict)
    _integers: list[dict[tuple[Any, ...], int]] = field(default_factory=list)
    _memory: list[dict[int, np.ndarray[Any, Any]]] = field(default_factory=list)

    def read(self) -> None:
        """Note the counters; no rank may be inside a call."""
        integers: dict[tuple[Any, ...], int] = {}
        memory: dict[int, np.ndarray[Any, Any]] = {}
        for rank, context in self.contexts.items():
            for path, value in _walk(context, (rank,), set()):
                if isinstance(value, torch.Tensor):
                    storage = value.untyped_storage()
                    memory[storage.data_ptr()] = _words(storage).copy()
                else:
                    integers[path] = value
        self._integers.append(integers)
        self._memory.append(memory)

    def advance(self) -> None:
        """Advance all counters by the same number of calls.

        Raises:
            NotLinearError: something does not grow by a constant; nothing was changed.
        """
        if any(each.keys() != self._integers[0].keys() for each in self._integers[1:]):
            raise NotLinearError
        growing = {
            path: _growth([each[path] for each in self._integers])
            for path, value in self._integers[0].items()
            if any(each[path] != value for each in self._integers)
        }
        flags = {}
        for address in self._memory[-1]:
            rows = [each[address] for each in self._memory if address in each]
            if len(rows) == OBSERVED:
                steps = _steps(np.stack(rows).astype(np.int64))
                if steps.any():
                    flags[address] = steps
        if not flags or not growing:
            raise NotLinearError
        pairs = self._pairs(flags) if self.far else _NEAR
        for path, step in growing.items():
            _add(self.contexts[path[0]], path[1:], pairs * step)
        for address, steps in flags.items():
            words = _words_at(address, 4 * len(steps))
            words += (pairs * steps).astype(np.uint64).astype(np.uint32).view(np.int32)

    def _pairs(self, flags: dict[int, np.ndarray[Any, Any]]) -> int:
        """How many pairs of calls leave the fastest flag just below 2^31."""
        ends = [
            int((2**31 - 1 - self._memory[-1][address][k]) // steps[k])
            for address, steps in flags.items()
            for k in np.flatnonzero(steps)
        ]
        return min(ends)


def _walk(
    value: Any,  # noqa: ANN401 - anything that a context holds
    path: tuple[Any, ...],
    seen: set[int],
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The integers and the tensors that an object holds, each with how it is reached."""
    if type(value) is int:
        yield path, value
        return
    if id(value) in seen or len(path) > _DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        size = value.untyped_storage().nbytes()
        if value.device.type == "cpu" and not value.is_floating_point() and 0 < size <= _LARGEST:
            yield path, value
        return
    inner: Any
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    elif type(value).__module__.partition(".")[0] in _FOREIGN or not hasattr(value, "__dict__"):
        return
    else:
        inner = vars(value).items()
    for key, each in list(inner):
        yield from _walk(each, (*path, key), seen)


def _growth(values: Sequence[int]) -> int:
    """What a number grows by in each two calls; it must not fall.

    Raises:
        NotLinearError: it does not.
    """
    steps = {later - value for value, later in zip(values, values[2:], strict=False)}
    if len(steps) != 1 or sorted(values) != list(values):
        raise NotLinearError
    return steps.pop()


def _steps(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What each word grows by in each two calls; 0 for those that are no counters."""
    steps = rows[2:] - rows[:-2]
    steady = (steps == steps[0]).all(0) & (np.diff(rows, axis=0) >= 0).all(0)
    steady &= (steps[0] > 0) & (steps[0] < _STEP) & (rows[0] < _STEP) & (rows[0] >= 0)
    found: np.ndarray[Any, Any] = np.where(steady, steps[0], 0)
    return found


def _add(context: Any, path: tuple[Any, ...], more: int) -> None:  # noqa: ANN401
    *outer, last = path
    owner = context
    for key in outer:
        owner = owner[key] if isinstance(owner, dict | list | tuple) else vars(owner)[key]
    if isinstance(owner, dict | list):
        owner[last] += more
    elif isinstance(owner, tuple):
        raise NotLinearError
    else:
        vars(owner)[last] += more


def _words(storage: torch.UntypedStorage) -> np.ndarray[Any, Any]:
    return _words_at(storage.data_ptr(), storage.nbytes() // 4 * 4)


def _words_at(address: int, size: int) -> np.ndarray[Any, Any]:
    """Memory as int32 words, past the dispatcher: no stream takes part."""
    return np.ctypeslib.as_array((ctypes.c_int32 * (size // 4)).from_address(address))
