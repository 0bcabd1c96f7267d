"""Advances what a context counts, as if it had made very many calls.

Epochs and flags grow with each call, and pass 2^31 after days that no test has. Under simulation
all ranks share a process: the integers of their contexts, and those in memory that the contexts
hold, are read after each of some equal calls. What grows by a constant in each two of these (double
buffers alternate) is then advanced alike, as far as a flag in memory still is below 2^31. After two
calls there it is advanced again, for the slowest flag too, and to 2^32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.sync.flags import to_int32

if TYPE_CHECKING:
    from tlmatrix.interpreter.sync.flags import Flag

FIRST = 2
"""Calls before the first reading: they allocate buffers and fill caches."""
OBSERVED = 5
"""Equal calls from which the growth is read."""
EDGE_CALLS = 2
"""Calls after each time that counters are advanced."""
EDGES = 4
"""The most times that they are: flags of two speeds pass 2^31 and 2^32."""
_NEAR = 8
"""Pairs of calls that are skipped to see whether skipping works at all."""
_DEPTH = 5
_LARGEST = 1 << 20
"""Bytes of the largest memory that may hold flags."""
_STEP = 1 << 24
"""The most that a flag grows in two calls; what grows faster is data."""
_FOREIGN = ("torch", "tlmatrix", "builtins", "numpy", "tilelang")
"""Packages whose objects hold no counters of an operator."""


_Path = tuple[Any, ...]
"""The rank of a context, and how an integer is reached from there."""


class NotLinearError(Exception):
    """A counter of a context does not grow by a constant, or cannot be advanced."""


@dataclass
class Counters:
    """The counters of all ranks' contexts, read after each call.

    Attributes:
        far: whether they are advanced to 2^31 and 2^32, or by a few calls as often.
        contexts: those of the ranks that have made the calls so far.
        ended: whether `advance` has nothing left to do.
    """

    far: bool
    contexts: dict[int, Any] = field(default_factory=dict)
    ended: bool = False
    _readings: list[_Reading] = field(default_factory=list)
    _growth: _Reading | None = None
    """What grows by how much in each two calls; known after the observed calls."""
    _edges: list[int] = field(default_factory=list)
    """Pairs of calls after the observed ones, before which counters still are to be advanced."""
    _pairs: int = 0
    """Pairs of calls after the observed ones, made or not."""
    _wrapped: set[_Path] = field(default_factory=set)
    """Integers that were seen to wrap around as an int32."""

    def read(self) -> None:
        """Note the counters; no rank may be inside a call."""
        reading = _Reading({}, {})
        for rank, context in self.contexts.items():
            for path, value in _walk(context, (rank,), set()):
                if isinstance(value, torch.Tensor):
                    storage = value.untyped_storage()
                    reading.memory[storage.data_ptr()] = _words(storage).astype(np.int64)
                else:
                    reading.integers[path] = value
        self._readings.append(reading)

    def advance(self, written: Mapping[int, Flag]) -> None:
        """Advance all counters by the same number of calls; sets `ended` if no edge is left.

        `written` are the flags that the simulation knows, by address; waits compare values with
        those that they had.

        Raises:
            NotLinearError: something does not grow by a constant; nothing was changed.
        """
        if self._growth is None:
            self._growth = growth = _growth(self._readings)
            edges = _edges(self._readings[-1], growth)
            self._edges = (
                edges if self.far else [n * (_NEAR + 1) - 1 for n in range(1, len(edges) + 1)]
            )
            del self._readings[:-1]
        else:
            growth = self._growth
            self._pairs += EDGE_CALLS // 2
            self._edges = [pairs for pairs in self._edges if pairs > self._pairs]
        self.ended = not self._edges or not self._as_expected(growth)
        if self.ended:
            return
        more = self._edges[0] - self._pairs
        self._pairs = self._edges.pop(0)
        for path, step in growth.integers.items():
            _add(self.contexts[path[0]], path[1:], more * step, wraps=path in self._wrapped)
        for address, steps in growth.memory.items():
            words = _words_at(address, 4 * len(steps))
            words += (more * steps).astype(np.uint64).astype(np.uint32).view(np.int32)
            for k in np.flatnonzero(steps):
                if flag := written.get(address + 4 * int(k)):
                    flag.advance(int(more * steps[k]))

    def _as_expected(self, growth: _Reading) -> bool:
        """Whether calls at the last edge advanced the counters as before, modulo 2^32."""
        if not self._pairs:
            return True
        first = self._readings[0]
        self.read()
        now = self._readings.pop()
        for path, step in growth.integers.items():
            expected = first.integers[path] + self._pairs * step
            if now.integers.get(path) == to_int32(expected) != expected:
                self._wrapped.add(path)
            elif now.integers.get(path) != expected:
                return False
        return all(
            address in now.memory
            and np.array_equal(
                to_int32(first.memory[address] + self._pairs * steps)[steps > 0],
                now.memory[address][steps > 0],
            )
            for address, steps in growth.memory.items()
        )


@dataclass(frozen=True)
class _Reading:
    """Integers by how they are reached, and the int32 words of memory by its address."""

    integers: dict[_Path, int]
    memory: dict[int, np.ndarray[Any, Any]]


def _growth(readings: Sequence[_Reading]) -> _Reading:
    """What grows in each two calls, and by how much; 0 for words that are no counters.

    Raises:
        NotLinearError: an integer does not grow by a constant, or no flag or no integer grows.
    """
    first, last = readings[0], readings[-1]
    if any(each.integers.keys() != first.integers.keys() for each in readings):
        raise NotLinearError
    integers = {
        path: _step([each.integers[path] for each in readings])
        for path, value in first.integers.items()
        if any(each.integers[path] != value for each in readings)
    }
    memory = {}
    for address in last.memory:
        rows = [each.memory[address] for each in readings if address in each.memory]
        if len(rows) == OBSERVED and (steps := _steps(np.stack(rows))).any():
            memory[address] = steps
    if not memory or not integers:
        raise NotLinearError
    return _Reading(integers, memory)


def _edges(last: _Reading, growth: _Reading) -> list[int]:
    """Pairs of calls that leave the fastest or the slowest flag just below 2^31 or 2^32."""
    flags = [
        (int(steps[k]), int(last.memory[address][k]))
        for address, steps in growth.memory.items()
        for k in np.flatnonzero(steps)
    ]
    speeds = [step for step, _ in flags]
    return sorted(
        {
            min((end - 1 - value) // speed for step, value in flags if step == speed)
            for speed in (max(speeds), min(speeds))
            for end in (2**31, 2**32)
        }
    )


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


def _step(values: Sequence[int]) -> int:
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


def _add(context: Any, path: tuple[Any, ...], more: int, *, wraps: bool) -> None:  # noqa: ANN401
    *outer, last = path
    owner = context
    for key in outer:
        owner = owner[key] if isinstance(owner, dict | list | tuple) else vars(owner)[key]
    if isinstance(owner, tuple):
        raise NotLinearError
    held = owner if isinstance(owner, dict | list) else vars(owner)
    held[last] = to_int32(held[last] + more) if wraps else held[last] + more


def _words(storage: torch.UntypedStorage) -> np.ndarray[Any, Any]:
    return _words_at(storage.data_ptr(), storage.nbytes() // 4 * 4)


def _words_at(address: int, size: int) -> np.ndarray[Any, Any]:
    """Memory as int32 words, past the dispatcher: no stream takes part."""
    return np.ctypeslib.as_array((ctypes.c_int32 * (size // 4)).from_address(address))
