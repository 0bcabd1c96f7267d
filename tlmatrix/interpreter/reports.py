"""What sanitizers report, and where: the line of the user's program that is running.

Every sanitizer has a switch: `interpret(sanitize=True)` turns on the default ones, a set of
names exactly those.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InterpreterError

if TYPE_CHECKING:
    import torch


_OWN = f"{Path(__file__).resolve().parents[1]}/"
"""The whole package: its guards, too, stand between an operation and the user's line."""
_LIBRARIES = ("/site-packages/torch/", "/lib/python3", _OWN)


@cache
def _is_users(name: str) -> bool:
    return not name.startswith("<") and not any(part in name for part in _LIBRARIES)


def caller() -> tuple[str, int]:
    """File and line of the innermost frame outside this package and the libraries it knows."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # much cheaper than inspect
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_users(name):
            return name, frame.f_lineno
        frame = frame.f_back
    return "", 0


def rendered(location: tuple[str, int]) -> str:
    """A location as `file:line`."""
    return f"{location[0]}:{location[1]}" if location[0] else "an unknown line"


SANITIZERS = {
    "bounds": "access outside global, shared or tensor memory that nothing guards",
    "fragments": "access outside a fragment or local buffer (often without effect)",
    "tables": "read of one integer outside global memory, which TileLang's guard skips",
    "guarded": "access outside global memory that TileLang's guard skips",
    "uninitialised": "read of an element that nothing has written",
    "unwritten": "output element that is still unwritten when the kernel ends",
    "races": "one element written by two blocks, roles, streams or ranks, or read by one and "
    "written by another, with nothing to order them",
    "barriers": "a wait that can never pass, arrivals no phase takes, work that outlives its "
    "block, ranks in different collectives",
    "lanes": "one element written twice by one parallel loop, or read and written by every thread; "
    "fragment accessed by threads that do not have its elements",
    "sequences": "packed access that leaves the sequence of its block",
    "overreads": "packed read that starts in its sequence and runs past the end",
    "alignment": "argument that is not aligned to a vector access, cp.async or TMA that TileLang "
    "makes of the kernel",
    "atomics": "floating-point numbers that two blocks or threads add to one element, in any order",
    "overflow": "signed integer arithmetic whose result leaves its dtype",
    "budget": "more shared or tensor memory than there is, or a layout past its allocation",
    "lowering": "element to which lowered code gives another value than the source does",
    "nonfinite": "the operation that made the first NaN or infinity of an output",
}
"""Every sanitizer, and what it reports."""

_TOLERANT = frozenset({"atomics", "guarded", "overreads"})

DEFAULT_SANITIZERS = frozenset(SANITIZERS) - _TOLERANT
"""What `sanitize=True` turns on: all but those that report accesses without harm by themselves."""


def sanitizer_names(sanitize: bool | str | Collection[str]) -> frozenset[str]:
    """The sanitizers that a value of `sanitize=` turns on.

    Raises:
        ValueError: for a name that is none; names the nearest.
    """
    if isinstance(sanitize, bool):
        return DEFAULT_SANITIZERS if sanitize else frozenset()
    names = frozenset([sanitize] if isinstance(sanitize, str) else sanitize)
    for name in sorted(names - SANITIZERS.keys()):
        near = difflib.get_close_matches(name, SANITIZERS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no sanitizer is named {name!r}; {hint}one of {', '.join(SANITIZERS)}")
    return names


@dataclass(frozen=True)
class Party:
    """One side of a finding.

    Attributes:
        block: the block's index in the grid, (x, y, z) as the kernel names them; None at its end.
        file: the Python file of the access.
        line: its line.
        action: what it did: "read", "write", "atomic".
        by: what made the access, other than the block: "rank 1, stream 2", "threads 0..127".
    """

    block: tuple[int, ...] | None
    file: str
    line: int
    action: str
    by: str = ""

    def __str__(self) -> str:
        return f"{self.access} at {self.file}:{self.line}"

    @property
    def access(self) -> str:
        """The access without its line: `a read by threads 0..127, block (0,)`."""
        action = "an atomic update" if self.action == "atomic" else f"a {self.action}"
        block = f"block {self.block}" if self.block is not None else ""
        by = ", ".join(filter(None, (self.by, block)))
        return f"{action} by {by}" if by else action


@dataclass(frozen=True)
class Report:
    """A finding of a sanitizer: the first of its kind at its line in one launch.

    Attributes:
        sanitizer: its name in `SANITIZERS`.
        kernel: the kernel's name; empty of what no kernel does: a copy between ranks.
        file: the Python file of the access.
        line: its line.
        buffer: the user's name of the buffer.
        index: the element, in the buffer's own dimensions; empty where a whole buffer is meant.
        block: the block's index in the grid; None where no block is meant.
        message: one sentence that says what happened.
        other: the other party, where there are two.
        count: how many accesses of the launch had the same finding.
        tensor: what the caller passed for the buffer, or got for it; None for the kernel's own.
        rank: the simulated rank; None where there is but one.
        hint: what to do about this report; empty if it is what its sanitizer says of all reports.
    """

    sanitizer: str
    kernel: str
    file: str
    line: int
    buffer: str
    index: tuple[int, ...]
    block: tuple[int, ...] | None
    message: str
    other: Party | None = None
    count: int = 1
    tensor: torch.Tensor | None = field(default=None, compare=False, repr=False)
    rank: int | None = None
    hint: str = ""

    def __str__(self) -> str:
        block = f", block {self.block}" if self.block is not None else ""
        block += f", on rank {self.rank}" if self.rank is not None else ""
        kernel = f", in kernel {self.kernel}" if self.kernel else ""
        other = f"\n  against {self.other}" if self.other is not None else ""
        again = f"\n  and {self.count - 1} more like it" if self.count > 1 else ""
        hint = f"\n  {self.hint}" if self.hint else ""
        return (
            f"{self.sanitizer}: {self.message}\n"
            f"  at {self.file}:{self.line}{kernel}{block}{other}{hint}{again}"
        )


class ReportSet:
    """The reports of a launch or a simulation: the first of each cause, with a count."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Report] = {}

    def again(self, key: tuple[Any, ...]) -> bool:
        """Count a finding once more; False if it is new."""
        known = self._found.get(key)
        if known is None:
            return False
        self._found[key] = replace(known, count=known.count + 1)
        return True

    def add(self, report: Report, key: tuple[Any, ...] | None = None) -> None:
        """Add a report, or count an earlier one with the same key."""
        other = report.other
        key = key or (
            report.sanitizer,
            report.file,
            report.line,
            report.buffer,
            other and (other.file, other.line),
        )
        if not self.again(key):
            self._found[key] = report

    def reports(self) -> list[Report]:
        """The reports, in order."""
        return list(self._found.values())


ALL_ARRIVE = (
    "of the threads that wait, let all arrive at the barrier for which the other side waits, or "
    "synchronize them before one does. In a loop of T.Pipelined that TileLang splits between warp "
    "groups, T.ptx_commit_group() before its first copy lets all threads of the producer arrive"
)
"""What ends waits that a later phase may overtake."""


def overtaken_wait(waiting: str, barrier: str) -> str:
    """A report of a wait for an mbarrier whose next phase may end before it is seen to pass."""
    return (
        f"the wait of {waiting} for {barrier} may last for ever: the next phase of the barrier can "
        "end before the end of the one that is waited for was seen"
    )


ALL_WARPS = "all warps of a warp group must execute setmaxnreg, and with one count (PTX ISA)"
"""A rule of `setmaxnreg`."""


def registers_of_a_part(who: str, first: int, last: int) -> str:
    """A report of a `setmaxnreg` of some warps of the warp group of threads `first` to `last`."""
    group = f"the warp group of threads {first}..{last}"
    return f"{who} set the registers of {group}; its other warps do not, or to another count"


def too_many_registers(wanted: int, most: int) -> str:
    """A report of a `setmaxnreg` for `wanted` registers of a block, of `most` that there are."""
    return (
        f"the warp groups of a block want {wanted} registers in all, and a multiprocessor has "
        f"{most}: setmaxnreg waits for ever"
    )


def element_name(buffer: str, index: Sequence[int]) -> str:
    """An element as reports name it: `scores[3, 4]`; a variable has no index."""
    return f"{buffer}[{', '.join(str(i) for i in index)}]" if len(index) else buffer


def source_line(location: Any) -> tuple[str, int]:
    """The file and the line of a location of the IR; ("", 0) if it is not known."""
    return (location.file, location.line) if location is not None else ("", 0)


class SanitizerError(InterpreterError):
    """A kernel ended with reports, and `on_report="raise"` was asked for.

    Attributes:
        reports: what was found in the launch.
    """

    def __init__(self, reports: Iterable[Report]) -> None:
        self.reports = tuple(reports)
        super().__init__("\n".join(str(r) for r in self.reports))


@dataclass(frozen=True)
class Sequences:
    """Which rows of a packed tensor belong to which sequence.

    A block's own sequences are those whose two boundaries it has read from a parameter that
    holds `boundaries`, or whose start from one that holds the starts alone. A kernel without such
    a parameter is not checked, unless `of_block` says whose each block is.

    Attributes:
        boundaries: integers [sequences + 1], not descending: sequence s owns the rows from
            `boundaries[s]` up to `boundaries[s + 1]`.
        axis: the dimension of the tensor that holds the rows.
        of_block: from a block's index in the grid to its sequence.
    """

    boundaries: tuple[int, ...]
    axis: int = 0
    of_block: Callable[..., int] | None = None


def declared_sequences(
    declared: Mapping[str, Any] | Callable[[str, torch.Tensor], Sequences | None] | None,
) -> Callable[[str, torch.Tensor], Sequences | None]:
    """`sequences=` as a function from a parameter's name and tensor to its `Sequences`.

    Values of a mapping are `Sequences`, boundaries, or (boundaries, axis).

    Raises:
        ValueError: for boundaries that are not a rising list of integers.
    """
    if callable(declared):
        return declared
    found = {}
    for name, value in (declared or {}).items():
        if isinstance(value, Sequences):
            found[name] = value
            continue
        axis = 0
        if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], int):
            value, axis = value  # noqa: PLW2901  # the pair taken apart
        numbers = np.asarray(value)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or (np.diff(numbers) < 0).any():
            raise ValueError(
                f"sequences[{name!r}] must be boundaries: integers that do not descend, "
                f"got {value!r}"
            )
        found[name] = Sequences(tuple(int(n) for n in numbers), int(axis))
    return lambda name, _tensor: found.get(name)


@dataclass(kw_only=True)
class Checks:
    """The sanitizers that are on, and what the caller declares to them.

    Attributes:
        sanitizers: the sanitizers that are on.
        sequences: from a parameter's name and tensor to whose its rows are.
        partial: parameters that a kernel may leave unwritten in part.
        poison: the bits of elements that the caller marks as unwritten, by dtype.
    """

    sanitizers: frozenset[str] = frozenset()
    sequences: Callable[[str, torch.Tensor], Sequences | None] = lambda _name, _tensor: None
    partial: frozenset[str] = frozenset()
    poison: Mapping[torch.dtype, int] = field(default_factory=dict)
