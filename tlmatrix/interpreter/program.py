"""A generated program: its source, how to call it, and the plans of what is woven into it.

Plain data, read by what runs programs and by what reports on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .coverage import GuardSite, LoopSite
    from .ir.nodes import Expr, Layout, Location


@dataclass(frozen=True)
class Parameter:
    """A parameter of the kernel.

    Attributes:
        name: the user's name.
        dtype: the IR's dtype.
        shape: for a tensor its extents, each an int or the code of an expression over the
            symbolic dims and the scalar parameters; None for a scalar.
        strides: as `shape`.
        used: whether the kernel accesses it.
        code: its name in those expressions, for a scalar.
        pointer: whether it is declared as a pointer (`T.ptr`), and may be passed an address.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    strides: tuple[int | str, ...] = ()
    used: bool = True
    code: str = ""
    pointer: bool = False

    @cached_property
    def has_symbolic_rows(self) -> bool:
        """Whether a stride other than the last one depends on a launch."""
        return any(isinstance(code, str) for code in self.strides[:-1])


@dataclass(frozen=True)
class GlobalLayout:
    """A layout annotated on a global buffer.

    Attributes:
        layout: maps a logical index to a physical one.
        shape: the extents of the physical index.
    """

    layout: Layout
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class Program:
    """The generated source of one kernel, and how to call it.

    Attributes:
        source: a module with one function, `kernel`.
        locations: for each line of the source the user's line.
        parameters: the PrimFunc's parameters in order.
        symbols: names of symbolic dims, passed after the parameters.
        layouts: global buffers with an annotated layout.
        together: of those, how many elements of a row a vector atomic takes for neighbours.
        watch: what the monitor of a sanitized program needs to know; None for others.
        shared: how much shared memory the kernel needs; known of sanitized programs.
        counted: what a covered program counts; None for others.
        tensor: how many columns of tensor memory.
        record: what the recorder of a recorded program needs to know; None for others.
        waits: whether its blocks wait for flags, so that the function returns a `BlockLaunch`.
    """

    name: str
    source: str
    locations: tuple[Location | None, ...]
    parameters: tuple[Parameter, ...]
    symbols: tuple[str, ...]
    layouts: dict[str, GlobalLayout]
    watch: Watch | None = None
    shared: MemoryNeed | None = None
    counted: Counted | None = None
    tensor: MemoryNeed | None = None
    record: Record | None = None
    together: dict[str, int] = field(default_factory=dict)
    waits: bool = False


@dataclass(frozen=True)
class MemoryNeed:
    """The largest need of a kernel.

    Attributes:
        size: bytes; of tensor memory columns.
        location: the line of the largest buffer of it.
        largest: that buffer's name.
        buffers: the buffers that live at once, as "name size".
    """

    size: int
    location: Location | None
    largest: str
    buffers: tuple[str, ...]


@dataclass(frozen=True)
class Site:
    """A place in the user's source that accesses a buffer.

    Attributes:
        location: the user's line, if it is known.
        buffer: the user's name of the buffer.
        action: "read", "write" or "atomic".
        local: whether the buffer is a fragment or local.
        is_global: whether it lies in global memory.
        orders: whether it may order blocks: an atomic load or store, or an atomic whose old
            value is used.
        acquires: whether it comes after the agents whose atomics it has seen.
        releases: whether agents that see it come after the agent that does it.
        rounds: whether it is an atomic addition of floating-point numbers whose sum depends on the
            order of additions.
    """

    location: Location | None
    buffer: str
    action: str
    local: bool
    is_global: bool
    orders: bool = False
    acquires: bool = False
    releases: bool = False
    rounds: bool = False


@dataclass(frozen=True)
class Watch:
    """What the monitor of a sanitized program needs to know.

    Attributes:
        sites: by number, as the generated source names them.
        usage: per global buffer what the kernel does with it: "read", "write", "atomic".
        misplaced: whether TileLang may give elements of its fragments to wrong threads.
        copied_last: whether it may free tensor memory while warps still copy it.
    """

    sites: tuple[Site, ...]
    usage: dict[str, frozenset[str]]
    misplaced: bool = False
    copied_last: bool = False


@dataclass(frozen=True)
class Counted:
    """What the slots of a covered program stand for.

    Attributes:
        slots: how many there are; slot 0 is of nothing.
        lines: each line that can run, and the slots whose sum is how often it did.
        guards: each guard with the first of its three slots, and whether it is a mask.
        loops: the loops, by number.
        constant: of each loop whether its trips are fixed in this program.
    """

    slots: int
    lines: tuple[tuple[tuple[str, int], tuple[int, ...]], ...]
    guards: tuple[tuple[GuardSite, int, bool], ...]
    loops: tuple[LoopSite, ...]
    constant: tuple[bool, ...]


@dataclass(frozen=True)
class AccessSite:
    """A place in the user's source that reads or writes a buffer.

    Attributes:
        location: the user's line, if it is known.
        buffer: the user's name of the buffer, or of a variable.
        memory: which memory that is; views of one buffer share it.
        scope: TileLang's memory scope; "variable" of a variable or a binding.
        dtype: the IR's dtype.
        codec: name of the codec that its elements are packed with, if they are.
        action: "read", or how it is written: "store", "atomic", a rule of `slices`, ….
    """

    location: Location | None
    buffer: str
    memory: str
    scope: str
    dtype: str
    codec: str | None
    action: str

    @property
    def is_global(self) -> bool:
        """Whether other blocks and kernels see it."""
        return self.scope == "global"


@dataclass(frozen=True)
class Loop:
    """A serial loop of the user's source; `name` is empty where it has no variable."""

    name: str
    location: Location | None


@dataclass(frozen=True)
class Record:
    """What a recorder needs to know of a recorded program.

    Attributes:
        sites: by number, as the generated source names them.
        loops: by number.
        grids: for each grid the names of its block indices.
        usage: per global buffer what the kernel does with it: "read", "write", "atomic".
        memories: per global buffer the memory it is.
    """

    sites: tuple[AccessSite, ...]
    loops: tuple[Loop, ...]
    grids: tuple[tuple[str, ...], ...]
    usage: dict[str, frozenset[str]]
    memories: dict[str, str]

    @property
    def independent(self) -> bool:
        """Whether no block can see what another does: nothing that is written is read."""
        written = [actions for actions in self.usage.values() if actions & {"write", "atomic"}]
        return not any(actions - {"write", "atomic"} for actions in written)
