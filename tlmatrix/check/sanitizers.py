"""The `sanitizers` check: reports of the interpreter's sanitizers as findings.

Sanitizers are enabled in the first run of a case, the guarded one on poisoned memory, so the check
adds no run. They recognize uninitialized memory by its poison, in all kernels of the entry.

Every report is a fault except two kinds, which only explain wrong values: an operation that
creates a NaN, and unwritten memory that is not a result. Reports of one line become one finding,
and so do those of one sanitizer in one kernel. Wrong values of the same tensor are added to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from tlmatrix.check.dependence import depends_on_other_sequences
from tlmatrix.check.finding import Finding
from tlmatrix.check.guards import guarded
from tlmatrix.check.memory import MARKS, poison_mask
from tlmatrix.spec.issues import SpecError
from tlmatrix.tracebacks import short_path, unwinds
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from tlmatrix.interpreter import Report, Sequences
    from tlmatrix.problem.model import Dim, Problem, Tensors
    from tlmatrix.spec.model.spec import Spec

    Execute = Callable[[Problem], Tensors]


# The tensors of a problem that the parameters of kernels are --------------------------------------
#
# A parameter in the memory of an input is that input or a view of it. A tensor that the entry
# allocated is assumed to be packed like a tensor of the problem with the same shape, unless the
# spec declares its sequences (`sanitizers.sequences`).

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


# The check ----------------------------------------------------------------------------------------


_CHECK = "sanitizers"
_MAX_LINES = 6
"""Most further lines that a finding lists."""

_ORDER = (
    "overflow", "bounds", "fragments", "tables", "sequences", "races", "barriers", "lanes",
    "uninitialised", "unwritten", "atomics", "alignment", "budget", "overreads",
    "guarded", "lowering", "nonfinite",
)  # fmt: skip
"""Which report of a line becomes the title: causes before consequences."""

_FATAL = frozenset({"bounds", "fragments"})
"""Reports of accesses at which a kernel stops without sanitizers."""

_VALUE_CHECKS = frozenset({"numeric", "gradients", "poison"})

_HINTS = {
    "bounds": "no bounds check protects this access; a GPU reads or writes other memory there",
    "fragments": "no bounds check protects this access: is the fragment smaller than the loop?",
    "tables": "TileLang's bounds check yields 0 here: is the loop one entry too long, or the table "
    "one too short?",
    "guarded": "TileLang's bounds check skips this access: is a partial tile intended?",
    "races": "blocks run in any order: let one block write each element, use atomics, or split the "
    "kernel",
    "lanes": "let one thread store each element (T.Parallel, or `if T.get_thread_binding() == 0`), "
    "use an atomic, or a variable or fragment",
    "lowering": "a fault in TileLang's lowering, if the source is right",
    "barriers": "one arrival, wait or phase too many or too few",
    "uninitialised": "clear or fill the memory first; copying a partial tile leaves the rest "
    "uninitialized",
    "unwritten": "is a bounds check too strict, the grid too small, or does a block return early?",
    "budget": "use smaller tiles or fewer stages",
    "atomics": "equal bits are demanded of equal calls: sum parts in a fixed order, or demand "
    "`determinism: bounded`",
    "overflow": "overflow of a signed integer is undefined in CUDA, and the compiler assumes that "
    "there is none: cast an operand to int64, or bound the arguments",
    "alignment": "a misaligned address on a GPU: copy such a tensor, or choose a "
    "kernel without vector accesses",
    "overreads": "these rows belong to the next sequence: mask them",
}

_PAGE_HINT = (
    "an entry of the block table past the last page of its sequence, or before its window, may "
    "hold anything (if pages before a window stay in it: `freed_pages: [false]`)"
)


class SanitizerSession:
    """The sanitizers of one run of an entry, and their reports.

    `only` restricts the sanitizers that the spec selects. With `deterministic`, which a spec
    demands of equal calls, the order of atomic additions must not matter either.
    """

    def __init__(
        self,
        spec: Spec,
        problem: Problem,
        only: frozenset[str] | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        from tlmatrix.interpreter import DEFAULT_SANITIZERS

        self._spec = spec
        self._problem = problem
        options = spec.sanitizers
        demanded = {"atomics"} if deterministic else set()
        self._selected = (DEFAULT_SANITIZERS | demanded | {*options.also}) - {*options.without}
        if only is not None:
            self._selected &= only
        # Replaced when a run begins, for guards copy the inputs.
        self._tensors = TensorMap(spec, problem)
        self._reports: list[Report] = []

    @contextmanager
    def enabled(self, problem: Problem) -> Iterator[None]:
        """Sanitize the kernels called inside; `problem` is the one that the entry receives."""
        self._tensors = TensorMap(self._spec, problem)
        with self._interpreting(self.names) as self._reports:
            yield

    @contextmanager
    def _interpreting(self, sanitizers: frozenset[str]) -> Iterator[list[Report]]:
        from tlmatrix.interpreter import interpret

        with interpret(
            sanitize=sanitizers,
            on_report="keep",
            sequences=self._tensors.sequences,
            poison=MARKS,
        ) as run:
            yield run.reports

    @property
    def names(self) -> frozenset[str]:
        """The names of the sanitizers of the run."""
        pages = {"guarded"} if self._tensors.has_pools and "tables" in self._selected else set()
        return (self._selected - {"nonfinite"}) | pages

    @contextmanager
    def enabled_on_ranks(self, world: int) -> Iterator[None]:
        """Sanitize the kernels of simulated ranks called inside.

        The tensors of several ranks are parts of the problem's, so only the spec tells which rows
        belong to which sequence.
        """
        problem = self._problem
        if world > 1:
            problem = replace(problem, dims={}, inputs={}, outputs={})
        with self.enabled(problem):
            yield

    @property
    def fatal(self) -> bool:
        """Whether a kernel stops at a reported access if sanitizers are off."""
        return any(report.sanitizer in _FATAL for report in self._reports)

    def findings(
        self, results: Tensors, others: Sequence[Finding], execute: Execute | None
    ) -> list[Finding]:
        """The findings of the session, then `others`, those of other checks in the same run.

        `results` are those of the run. `execute` runs the entry again: to find the operation that
        created a NaN, and to test whether results depend on rows of other sequences.
        """
        reports, explaining = self._faults(results)
        if execute is not None:
            reports = self._without_masked_reads(reports, results, execute)
        wrong = [finding for finding in others if finding.check in _VALUE_CHECKS]
        notes = [_summary(report) for report in explaining] if wrong else []
        if execute is not None and any(_not_finite(finding) for finding in wrong):
            notes += [_summary(report) for report in self._origin_of_nan(execute)]
        found, rest = _with_wrong_values(list(self._found(reports, results)), others)
        if not notes:
            return [*found, *rest]
        first, *more = [*found, *rest]
        return [first.with_notes(*notes), *more]

    def _without_masked_reads(
        self, reports: list[Report], results: Tensors, execute: Execute
    ) -> list[Report]:
        """The reports except cross-sequence reads that no result depends on."""
        from tlmatrix.interpreter.sync.settings import blocks_in_order

        names = {
            number: self._tensors.locate(report, results)[0]
            for number, report in enumerate(reports)
            if report.sanitizer == "sequences" and report.message.startswith("read")
        }
        with blocks_in_order():  # as in the run of `results`, whose bits are compared
            used = {
                name: name is None
                or depends_on_other_sequences(name, self._problem, results, execute)
                for name in set(names.values())
            }
        return [
            report
            for number, report in enumerate(reports)
            if number not in names or used[names[number]]
        ]

    def _faults(self, results: Tensors) -> tuple[list[Report], list[Report]]:
        """The reports of faults, and those of unwritten memory that is not a result."""
        faults, explaining = [], []
        unwritten: dict[str, Report] = {}
        for report in self._reports:
            if report.sanitizer == "guarded" and "guarded" not in self._selected:
                if self._tensors.outside_pool(report):
                    faults.append(replace(report, hint=_PAGE_HINT))
                continue
            if report.sanitizer != "unwritten" or report.tensor is None:
                faults.append(report)
                continue
            name = name_of(report.tensor, results)
            if name is None:
                explaining.append(report)
            else:
                # The last kernel that received the result and left a part unwritten.
                unwritten[name] = report
        for name, report in unwritten.items():
            mask = poison_mask(results[name])
            if mask is not None:
                index = tuple(int(i) for i in mask.nonzero()[0])
                indices = ", ".join(str(i) for i in index)
                others = int(mask.sum()) - 1
                message = f"{name}[{indices}] is never written, and {others} other elements"
                fault = replace(report, index=index, message=message, tensor=results[name])
                faults.append(fault)
        return faults, explaining

    def _origin_of_nan(self, execute: Execute) -> list[Report]:
        """The operation that created the first value that is not finite, found in another run."""
        if "nonfinite" not in self._selected:
            return []
        with (
            guarded(self._problem) as (inside, _),
            self._interpreting(frozenset({"nonfinite"})) as reports,
        ):
            try:
                execute(inside)
            except BaseException as error:
                if unwinds(error):
                    raise
                return []
        return reports[:1]

    def _found(self, reports: Iterable[Report], results: Tensors) -> Iterator[Finding]:
        by_line: dict[tuple[str, str, int, str], list[Report]] = defaultdict(list)
        for report in reports:
            by_line[(report.kernel, report.file, report.line, report.buffer)].append(report)
        by_kind: dict[tuple[str, str], list[list[Report]]] = defaultdict(list)
        for together in by_line.values():
            together.sort(key=lambda report: _ORDER.index(report.sanitizer))
            by_kind[(together[0].kernel, together[0].sanitizer)].append(together)
        for lines in by_kind.values():
            yield self._finding(lines, results)

    def _finding(self, lines: list[list[Report]], results: Tensors) -> Finding:
        (lead, *same), *more = lines
        tensor, index = self._tensors.locate(lead, results)
        notes = [_summary(report, location=False) for report in same]
        notes += [f"also {_summary(each[0])}" for each in more[:_MAX_LINES]]
        if len(more) > _MAX_LINES:
            notes.append(f"and at {len(more) - _MAX_LINES} more lines")
        return replace(finding_of(lead), tensor=tensor, index=index).with_notes(*notes)


def finding_of(report: Report) -> Finding:
    """The finding of one report."""
    title, *notes = report.message.splitlines()
    if report.count > 1:
        notes.append(f"and {report.count - 1} more like it")
    source = _source(report)
    return Finding(
        check=_CHECK,
        title=f"{report.sanitizer}: {title}",
        pattern=f"{report.sanitizer} at {source}",
        hint=_hint(report),
        detail="\n".join(notes) or None,
        source=source,
        kernel=report.kernel,
        block=report.block or None,
        against=_other_access(report),
    )


def _with_wrong_values(
    found: list[Finding], others: Sequence[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """Move wrong values of a tensor to the first sanitizer finding about it; return the rest."""
    rest = []
    values: dict[str, list[str]] = defaultdict(list)
    about = {finding.tensor for finding in found if finding.tensor is not None}
    for finding in others:
        if finding.check in _VALUE_CHECKS and finding.tensor in about:
            where = f", {finding.where}" if finding.where else ""
            values[str(finding.tensor)].append(f"wrong values: {finding.title}{where}")
        else:
            rest.append(finding)
    merged = [finding.with_notes(*values.pop(str(finding.tensor), ())) for finding in found]
    return merged, rest


def _not_finite(finding: Finding) -> bool:
    got = finding.got
    return got is not None and (got != got or abs(got) == float("inf"))  # noqa: PLR0124 - NaN


def _hint(report: Report) -> str | None:
    if report.hint:
        return report.hint
    if report.sanitizer == "sequences":
        if report.message.startswith("read"):
            return (
                "a tile starts in another sequence and results depend on it: is an offset or a "
                "bound that of another sequence?"
            )
        if report.message.startswith("atomic"):
            return (
                "rows of another sequence are added to: even masked terms of 0 become NaN there if "
                "an operand is infinite or NaN: bound the addition by the length"
            )
        return (
            "a full tile stored at the last rows of a sequence overwrites the next one: bound the "
            "store by the length"
        )
    if report.sanitizer == "races" and report.rank is not None:
        return (
            "order the two accesses: a barrier of the ranks, an event between streams, or a flag "
            "released after the first and acquired before the second"
        )
    if report.sanitizer == "budget" and "shared memory" not in report.message:
        return None  # a layout or tensor memory: the message has the limit
    return _HINTS.get(report.sanitizer)


def _summary(report: Report, *, location: bool = True) -> str:
    """A report in one line."""
    kernel = f", in kernel {report.kernel}" if report.kernel else ""
    place = f" at {_source(report)}{kernel}" if location else ""
    against = f", against {_other_access(report)}" if report.other is not None else ""
    message = report.message.split("\n", 1)[0]
    return f"{report.sanitizer}: {message}{place}{against}"


def _source(report: Report) -> str:
    return f"{short_path(report.file)}:{report.line}" if report.file else "an unknown line"


def _other_access(report: Report) -> str | None:
    other = report.other
    if other is None:
        return None
    place = f" at {short_path(other.file)}:{other.line}" if other.file else ""
    return f"{other.access}{place}"
