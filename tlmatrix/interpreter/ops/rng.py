"""Random numbers of cuRAND's device API: `T.rng_init`, `T.rng_rand`, `T.rng_rand_float`.

Philox4_32_10 alone, TileLang's default: number `k` of a thread follows from the seed, the
sequence, the offset and `k`, with no other state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.values import Val
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, walk

from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter

_PHILOX = "curandStatePhilox4_32_10_t"
_DRAWS = ("tl.rng_rand", "tl.rng_rand_float")
_STATE = "the state of the random numbers"
_LOW = (1 << 32) - 1


def _init(e: Emitter, call: ir.Call) -> None:
    """The state of the draws that follow in the source, one for each thread."""
    generator = call.args[3].value
    if generator != _PHILOX:
        raise e.refuse(f"the generator {generator}; {_PHILOX} is")
    if e.mask is not None and not e.mask.scalar:
        raise e.refuse("T.rng_init of some threads")
    _check_order(e)
    axis = threads_of(e, "T.rng_init").thread_axis(e, "T.rng_init")
    seed, sequence, offset = (e.expr(arg).code for arg in call.args[:3])
    name = e.vars[_STATE] = e.temp("random")
    e.w.line(f"{name} = Philox({seed}, {sequence}, {offset}, {axis.extent.code})")


def _check_order(e: Emitter) -> None:
    """Refuse parallel loops whose iterations draw more than once: the order would differ."""
    for loop in walk(e.kernel.body):
        if not (isinstance(loop, ir.For) and loop.kind == ir.PARALLEL):
            continue
        inside = list(walk(loop.body))
        draws = sum(isinstance(n, ir.Call) and n.op in _DRAWS for n in inside)
        repeated = any(
            isinstance(n, (ir.For, ir.While))
            and not (isinstance(n, ir.For) and n.kind == ir.PARALLEL)
            and calls(n.body, *_DRAWS)
            for n in inside
        )
        if draws > 1 or repeated:
            raise e.refuse("several random numbers in one iteration of T.Parallel")


def _draw(e: Emitter, call: ir.Call) -> Val:
    t = threads_of(e, "T.rng_rand")
    name = e.vars.get(_STATE)
    if name is None:
        raise e.refuse("T.rng_rand before T.rng_init")
    if not t.in_threads(e) and t.index.count > 1:
        raise e.refuse("T.rng_rand in T.Parallel of several threads, which share its iterations")
    kind = call.args[0].value if call.args else "bits"
    axes = e.all_axes
    found = e.temp("drawn")
    threads = "" if t.in_threads(e) else ", shared=True"
    shape = e.shape_of(axes)
    e.w.line(f"{found} = {name}.draw({kind!r}, {call.dtype!r}, {shape}, {e.mask_code}{threads})")
    return Val(found, call.dtype, axes, owned=True)


# What the generated source calls -----------------------------------------------------------


class Philox:
    """The states of some threads: how many numbers of 32 bits each has drawn."""

    def __init__(self, seed: Any, sequence: Any, offset: Any, threads: int) -> None:
        def wide(value: Any) -> Any:
            return np.broadcast_to(np.asarray(value).astype(np.int64), (threads,)).view(np.uint64)

        self._seed, self._sequence = wide(seed), wide(sequence)
        self._next = wide(offset).copy()
        self._spare: dict[str, Any] = {}
        """Second numbers of pairs, by dtype: where there is one, and it."""

    def draw(
        self, kind: str, dtype: str, shape: tuple[int, ...], mask: Any, *, shared: bool = False
    ) -> Any:
        """A number for each active thread; `shared`: for iterations of the only thread, in order.

        Args:
            kind: "bits", "uniform" or "normal".
            dtype: of the numbers.
            shape: of the result, in which inactive places hold 0.
            mask: which are active; None for all.
            shared: whether the result's places are iterations.
        """
        active = np.broadcast_to(True if mask is None else mask, shape)
        found = np.zeros(shape, dtype)
        places = np.flatnonzero(active)
        if shared:
            flat = [self._drawn(kind, dtype, np.zeros(1, np.int64))[0] for _ in places]
            found.reshape(-1)[places] = flat
        else:
            found.reshape(-1)[places] = self._drawn(kind, dtype, places)
        return found

    def _drawn(self, kind: str, dtype: str, threads: Any) -> Any:
        """The next number of each of some threads."""
        if kind == "bits":
            return self._words(threads, 1)[0]
        if kind == "uniform":
            if dtype == "float32":
                return _uniform(self._words(threads, 1)[0])
            return _uniform_double(*self._words(threads, 2))
        has, spare = self._spare.setdefault(
            dtype, (np.zeros(len(self._next), bool), np.zeros(len(self._next), dtype))
        )
        fresh = threads[~has[threads]]
        second = threads[has[threads]]
        values = dict(zip(second.tolist(), spare[second], strict=True))
        has[second] = False
        words = self._words(fresh, 2 if dtype == "float32" else 4)
        first, other = (_normals if dtype == "float32" else _normal_doubles)(*words)
        values.update(zip(fresh.tolist(), first, strict=True))
        has[fresh], spare[fresh] = True, other
        return np.array([values[t] for t in threads.tolist()], dtype)

    def _words(self, threads: Any, count: int) -> list[Any]:
        """The next numbers of 32 bits of some threads."""
        found = []
        for k in range(count):
            at = self._next[threads] + np.uint64(k)
            found.append(philox(self._seed[threads], self._sequence[threads], at))
        self._next[threads] += np.uint64(count)
        return found


def philox(seed: Any, sequence: Any, index: Any) -> Any:
    """Number `index` of sequences of Philox4_32_10, of 32 bits; arguments are uint64 arrays."""
    low, high = np.uint64(_LOW), np.uint64(32)
    block = index >> np.uint64(2)
    counter = [block & low, block >> high, sequence & low, sequence >> high]
    key = [seed & low, seed >> high]
    for number in range(10):
        if number:
            key = [(key[0] + np.uint64(0x9E3779B9)) & low, (key[1] + np.uint64(0xBB67AE85)) & low]
        first = counter[0] * np.uint64(0xD2511F53)
        second = counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            second >> high ^ counter[1] ^ key[0],
            second & low,
            first >> high ^ counter[3] ^ key[1],
            first & low,
        ]
    return np.choose((index & np.uint64(3)).astype(np.int64), counter).astype(np.uint32)


def _uniform(x: Any) -> Any:
    """In (0, 1], as curand_uniform."""
    return x.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)


def _uniform_double(x: Any, y: Any) -> Any:
    wide = x.astype(np.uint64) ^ (y.astype(np.uint64) << np.uint64(21))
    return wide.astype(np.float64) * 2.0**-53 + 2.0**-54


def _normals(x: Any, y: Any) -> tuple[Any, Any]:
    """Two numbers by Box and Muller, as curand_normal."""
    turn = np.float32(2.0**-32 * 2 * math.pi)
    angle = y.astype(np.float32) * turn + turn / np.float32(2)
    size = np.sqrt(np.float32(-2) * np.log(_uniform(x)))
    return np.sin(angle) * size, np.cos(angle) * size


def _normal_doubles(x0: Any, x1: Any, y0: Any, y1: Any) -> tuple[Any, Any]:
    angle = 2 * math.pi * _uniform_double(y0, y1)
    size = np.sqrt(-2 * np.log(_uniform_double(x0, x1)))
    return np.sin(angle) * size, np.cos(angle) * size


OPERATIONS = Operations(
    of_threads=Rules(calls=dict.fromkeys(_DRAWS, _draw), effects={"tl.rng_init": _init}),
    functions=(Philox,),
)
