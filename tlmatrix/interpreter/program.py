"""A generated program: its source, how to call it, and the plans of what is woven into it.

Plain data, read by what runs programs and by what reports on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
class Options:
    """Which variant of a program to generate.

    Attributes:
        guard: whether global accesses are guarded (`tl.disable_safe_memory_legalize` off).
        barriers: whether TileLang orders the threads of a block that share memory
            (`tl.disable_thread_storage_sync` off).
        sanitizers: the sanitizers that are on.
        observers: names of other observers (`watch.registry`).
        wide: whether all floats are float64.
        unrounded: the dtype to which factors of products are not rounded; "" if all are.
        arch: the architecture, for layouts that TileLang infers; "" if it infers none.
    """

    guard: bool = True
    barriers: bool = True
    sanitizers: frozenset[str] = frozenset()
    observers: frozenset[str] = frozenset()
    wide: bool = False
    arch: str = "sm_90a"
    unrounded: str = ""

    @property
    def kinds(self) -> list[str]:
        """What sets the variant apart from others of its kernel, in words."""
        sanitized = bool(self.sanitizers) and "traced" not in self.observers
        return [
            *["sanitized"] * sanitized,
            *sorted(self.observers, reverse=True),
            *["wide"] * self.wide,
            *["unrounded"] * bool(self.unrounded),
        ]


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
        arguments: names of the arguments for observers, by name of the observer.
        plans: what observers must know of the program, by name.
        waits: whether its blocks wait for flags, so that the function returns a `BlockLaunch`.
    """

    name: str
    source: str
    locations: tuple[Location | None, ...]
    parameters: tuple[Parameter, ...]
    symbols: tuple[str, ...]
    layouts: dict[str, GlobalLayout]
    together: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    plans: dict[str, Any] = field(default_factory=dict)
    waits: bool = False

    @property
    def watch(self) -> Watch | None:
        """The plan of a sanitized program, or of one that traces NaN; None of others."""
        return self.plans.get("sanitized") or self.plans.get("traced")


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
        buffer: the user's name of the buffer, or of a variable.
        action: "read", "write", "atomic"; in a recorded program how it is written: "store", a rule
            of `ops.SLICES`, ….
        scope: TileLang's memory scope; "variable" of a variable or a binding.
        memory: in a recorded program which memory the buffer is; views of one buffer share it.
        dtype: in a recorded program the IR's dtype.
        codec: name of the codec that its elements are packed with, if they are.
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
    scope: str = ""
    memory: str = ""
    dtype: str = ""
    codec: str | None = None
    orders: bool = False
    acquires: bool = False
    releases: bool = False
    rounds: bool = False

    @property
    def is_global(self) -> bool:
        """Whether other blocks and kernels see the buffer."""
        return self.scope == "global"

    @property
    def is_local(self) -> bool:
        """Whether the buffer is a fragment or local."""
        return self.scope != "global" and not self.scope.startswith("shared")


@dataclass(frozen=True)
class Watch:
    """What the runtime half of a sanitizer, or of the tracer of NaN, needs to know.

    Attributes:
        sites: by number, as the generated source names them.
        usage: per global buffer what the kernel does with it: "read", "write", "atomic".
        misplaced: whether TileLang may give elements of its fragments to wrong threads.
        copied_last: whether it may free tensor memory while warps still copy it.
        shared: how much shared memory the kernel needs.
        tensor: how many columns of tensor memory.
    """

    sites: tuple[Site, ...]
    usage: dict[str, frozenset[str]]
    misplaced: bool = False
    copied_last: bool = False
    shared: MemoryNeed | None = None
    tensor: MemoryNeed | None = None


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

    sites: tuple[Site, ...]
    loops: tuple[Loop, ...]
    grids: tuple[tuple[str, ...], ...]
    usage: dict[str, frozenset[str]]
    memories: dict[str, str]

    @property
    def independent(self) -> bool:
        """Whether no block can see what another does: nothing that is written is read."""
        written = [actions for actions in self.usage.values() if actions & {"write", "atomic"}]
        return not any(actions - {"write", "atomic"} for actions in written)
