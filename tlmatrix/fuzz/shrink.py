"""Shrinks a failing case to the smallest one that still fails.

Shrinking changes the values of a case, not the choices of Hypothesis, so it works for any case.
Smaller means fewer sequences, then shorter ones, then values listed earlier in the spec. Every
attempt satisfies the constraints, and keeps lengths in the ranges of `fuzz` if the case does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies.case_domain import SIDES
from tlmatrix.matrix.listed_cases import broken_constraints
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import Value, canonical, sides_of
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    import torch

    from tlmatrix.check.patterns import Projection
    from tlmatrix.matrix import Case
    from tlmatrix.problem import TensorInfo
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.fuzz import Range
    from tlmatrix.spec.model.spec import Spec

_SEEDS = (0, 1, 2)
"""Seeds of inputs; an element that a failure affects is rarely right in all three runs."""
_Lists = dict[tuple[str, ...], list[int]]
"""Lists of lengths in the value of an axis, by their paths in it."""


@dataclass(frozen=True)
class Shrunk:
    """The smallest case, the number of attempts, and whether shrinking finished in time."""

    case: Case
    tried: int
    ended: bool


def shrink(
    spec: Spec, case: Case, fails: Callable[[Case], bool], *, seconds: float = 20.0
) -> Shrunk:
    """Shrink the failing `case` for about `seconds`; `fails` runs an attempt."""
    search = _Search(spec, case, fails, time.monotonic() + seconds)
    try:
        while search.shrink_batches() | search.simplify_axes():
            pass
    except _OutOfTimeError:
        return Shrunk(search.best, len(search.tried), ended=False)
    return Shrunk(search.best, len(search.tried), ended=True)


class _OutOfTimeError(Exception):
    """No time is left."""


class _Search:
    """Holds the smallest failing case so far, `best`; a failing attempt replaces it."""

    def __init__(
        self, spec: Spec, case: Case, fails: Callable[[Case], bool], deadline: float
    ) -> None:
        self.best = case
        self.tried: set[str] = {case.key}
        self._spec = spec
        self._fails = fails
        self._deadline = deadline
        self._bounded = _within(spec, case)

    def attempt(self, changes: Mapping[str, Value], without: Sequence[str] = ()) -> bool:
        """Try `best` with other values and without some axes; return whether it fails."""
        values = {**self.best.values, **changes}
        for axis in without:
            values.pop(axis, None)
        case = replace(self.best, values=values, origin="fuzz")
        if case.key in self.tried or not self._allows(case):
            return False
        if time.monotonic() > self._deadline:
            raise _OutOfTimeError
        self.tried.add(case.key)
        if not self._fails(case):
            return False
        self.best = case
        return True

    def _allows(self, case: Case) -> bool:
        if self._bounded and not _within(self._spec, case):
            return False
        try:
            return not broken_constraints(self._spec, case)
        except SpecError:
            return False  # a constraint cannot be evaluated for these values

    # Lengths --------------------------------------------------------------------------------

    def shrink_batches(self) -> bool:
        """Drop sequences and shorten lengths; return whether anything changed."""
        before = self.best.key
        for axis in list(self.best.values):
            if _lists_of(self.best.values[axis]):
                self._fewer(axis)
                self._shorter(axis)
        return self.best.key != before

    def _fewer(self, axis: str) -> None:
        """Drop sequences, as many at once as possible."""
        size = self._sequences(axis) // 2
        while size:
            first = self._sequences(axis) - size
            while first >= 0 and self._sequences(axis) > size:
                if self._drop(axis, first, size):
                    first = min(first, self._sequences(axis)) - size
                else:
                    first -= max(1, size // 2)
            size //= 2

    def _sequences(self, axis: str) -> int:
        return max(len(lengths) for lengths in _lists_of(self.best.values[axis]).values())

    def _drop(self, axis: str, first: int, size: int) -> bool:
        lists = _lists_of(self.best.values[axis])
        whole = self._sequences(axis)
        kept = {
            path: lengths[:first] + lengths[first + size :] if len(lengths) == whole else lengths
            for path, lengths in lists.items()
        }
        if not all(kept.values()):
            return False
        return self.attempt({axis: _with_lists(self.best.values[axis], kept)})

    def _shorter(self, axis: str) -> None:
        """Shorten each length; first those of one sequence together."""
        for number in range(self._sequences(axis)):
            lists = _lists_of(self.best.values[axis])
            paths = [path for path, lengths in lists.items() if number < len(lengths)]
            if len(paths) > 1 and len({lists[path][number] for path in paths}) == 1:
                self._least(axis, paths, number)
            for path in paths:
                self._least(axis, [path], number)

    def _least(self, axis: str, paths: Sequence[tuple[str, ...]], number: int) -> None:
        """Find the least failing length of a sequence by bisection."""

        def attempt(length: int) -> bool:
            lists = _lists_of(self.best.values[axis])
            for path in paths:
                lists[path][number] = length
            return self.attempt({axis: _with_lists(self.best.values[axis], lists)})

        _bisect(_lists_of(self.best.values[axis])[paths[0]][number], 0, attempt)

    # Other axes -----------------------------------------------------------------------------

    def simplify_axes(self) -> bool:
        """Try the first value of each axis, then other earlier ones."""
        before = self.best.key
        axes = [axis for axis in self.best.values if not _lists_of(self.best.values[axis])]
        listed = {axis: self._spec.axes[axis] for axis in axes if self._spec.axes.get(axis)}
        extra = [axis for axis in axes if axis not in listed]
        if not self.attempt({axis: values[0] for axis, values in listed.items()}, extra):
            for axis in extra:
                if not self.attempt({}, [axis]):
                    self._reduce_maximum(axis)
            for axis, values in listed.items():
                self._simplify(axis, values)
        return self.best.key != before

    def _simplify(self, axis: str, values: Sequence[Value]) -> None:
        now = self.best.values[axis]
        texts = [canonical(value) for value in values]
        position = texts.index(canonical(now)) if canonical(now) in texts else len(values)
        for value in values[:position]:
            if self.attempt({axis: value}):
                return
        # Only a number that the spec does not list may become another one.
        if position == len(values) and isinstance(now, int) and not isinstance(now, bool):
            numbers = [n for n in values if isinstance(n, int) and not isinstance(n, bool)]
            _bisect(now, min([n for n in numbers if n < now], default=now), self._number(axis))

    def _reduce_maximum(self, axis: str) -> None:
        """Reduce a maximum length that exceeds the longest sequence."""
        maximum = self.best.values.get(axis)
        lists = _lists_of(self.best.values.get("seqlens"))
        if axis not in SIDES or not isinstance(maximum, int) or not lists:
            return
        lengths = lists.get(("k",)) if SIDES[axis] else None
        longest = max(lengths or lists.get(("q",)) or lists.get((), [0]))
        _bisect(maximum, longest + 1, self._number(axis))

    def _number(self, axis: str) -> Callable[[int], bool]:
        return lambda number: self.attempt({axis: number})


def _bisect(failing: int, least: int, attempt: Callable[[int], bool]) -> None:
    """Try numbers from `least` to below `failing`: `least` and the next one, then bisection."""
    if failing <= least or attempt(least):
        return
    passing = least
    if least + 1 < failing:
        if attempt(least + 1):
            return
        passing = least + 1
    while failing - passing > 1:
        middle = (failing + passing) // 2
        if attempt(middle):
            failing = middle
        else:
            passing = middle


def _lists_of(value: Value) -> _Lists:
    """Copies of the lists of lengths in a value: in `{q: [3, 4], k: same}` the one at `q`."""
    found: _Lists = {}
    for path, part in _parts(value):
        if part and all(isinstance(n, int) and not isinstance(n, bool) for n in part):
            found[path] = [int(str(n)) for n in part]
    return found


def _parts(
    value: Value, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Sequence[Value]]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, (*path, key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield path, value


def _with_lists(value: Value, lists: _Lists, path: tuple[str, ...] = ()) -> Value:
    """The value with other lists at the same paths."""
    if isinstance(value, Mapping):
        return {key: _with_lists(part, lists, (*path, key)) for key, part in value.items()}
    return lists.get(path, value)


def _within(spec: Spec, case: Case) -> bool:
    """Whether the lengths of a case are in the ranges of its spec's section `fuzz`."""
    if spec.fuzz is None:
        return True
    for axis, drawn in spec.fuzz.axes.items():
        if drawn.lengths is not None and axis in case.values:
            q, k = sides_of(case.values[axis], axis)
            if len(q) not in drawn.lengths.sequences or not _all_in(drawn.lengths.length, (*q, *k)):
                return False
    if "seqlens" not in case.values:
        return True
    q, k = sides_of(case.values["seqlens"])
    lengths = spec.fuzz.seqlens
    return (
        len(q) in lengths.sequences
        and _all_in(lengths.q or lengths.length, q)
        and _all_in(lengths.keys, k)
        and all(map(lengths.relates, q, k))
    )


def _all_in(range_: Range, lengths: Sequence[int]) -> bool:
    return all(length in range_ for length in lengths)


# The region of a failure ---------------------------------------------------------------------


def wrong_region(spec: Spec, runner: Runner, case: Case, tensor: str) -> str | None:
    """The elements of an output or gradient that are wrong with any of several inputs, as text.

    In a single run, some affected elements are right by chance or within their error bound.

    For example "row 64 of sequence 0, head 0, dims 0-63". None if nothing is wrong, or the case
    cannot run again.
    """
    from tlmatrix.check.numeric import deviations
    from tlmatrix.check.running import Results
    from tlmatrix.check.tolerance import ReferenceBounds

    wrong: torch.Tensor | None = None
    info: TensorInfo | None = None
    for seed in _SEEDS:
        try:
            problem, results = runner.outputs(spec, case, seed=seed or None)
            info = problem.outputs.get(tensor)
            if info is None or tensor not in results:
                return None
            parts = results.parts if isinstance(results, Results) else None
            bounds = ReferenceBounds(problem, spec.tolerance, runner.backend.arch, parts=parts)
            found = deviations({tensor: results[tensor]}, bounds).get(tensor)
        except SpecError:
            return None
        except BaseException as error:
            if unwinds(error):
                raise
            return None
        if found is not None:
            wrong = found.wrong if wrong is None else wrong | found.wrong
    return None if info is None or wrong is None else _words(wrong, info)


def _words(wrong: torch.Tensor, info: TensorInfo) -> str:
    from tlmatrix.check.patterns import recognise

    return ", ".join(_side(side) for side in recognise(wrong, info.dims).projections)


def _side(side: Projection) -> str:
    from tlmatrix.check.patterns import ranges

    if not side.segmented:
        noun = "row" if side.noun == "row" else side.dim.name.replace("_", " ")
        several = "" if len(side.indices) == 1 or noun.endswith("s") else "s"
        return f"{noun}{several} {ranges(side.indices)}"
    region = side.dim.region_name or "sequence"
    parts = [
        f"row{'' if len(at) == 1 else 's'} {ranges(at)} of {region} {number}"
        for number, at in sorted(side.regions.items())
    ]
    more = f" and {len(parts) - 4} {region}s more" if len(parts) > 4 else ""
    return "; ".join(parts[:4]) + more
