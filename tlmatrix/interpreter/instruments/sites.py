"""Sites: the places in the user's source that access a buffer, by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.buffers import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Location

__all__ = ["Site", "SiteTable", "Watch"]

_ACQUIRING = ("acquire", "both", "unsaid")
_RELEASING = ("release", "both", "unsaid")
_SHARED = ("global", "shared", "shared.dyn", "shared.tmem")


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
    """

    location: Location | None
    buffer: str
    action: str
    local: bool
    is_global: bool
    orders: bool = False
    acquires: bool = False
    releases: bool = False


@dataclass(frozen=True)
class Watch:
    """What the monitor of a sanitized program needs to know.

    Attributes:
        sites: by number, as the generated source names them.
        usage: per global buffer what the kernel does with it: "read", "write", "atomic".
    """

    sites: tuple[Site, ...]
    usage: dict[str, frozenset[str]]


class SiteTable:
    """Numbers sites."""

    def __init__(self) -> None:
        self._numbers: dict[Site, int] = {}

    def number(self, e: Emitter, buf: Buf, action: str, *, orders: bool = False) -> int:
        """The number of the site of an access at the current line."""
        atomic, order = e.atomic, e.atomic.order
        stores = action == "atomic" and atomic.is_access
        site = Site(
            e.w.location,
            buf.name,
            action,
            buf.scope not in _SHARED,
            buf.is_global,
            orders,
            acquires=orders and not stores and order in _ACQUIRING,
            releases=action == "atomic" and order in _RELEASING,
        )
        return self._numbers.setdefault(site, len(self._numbers))

    def plan(self, e: Emitter) -> Watch:
        """What the program's monitor needs to know."""
        usage = {
            buf.name: e.facts.usage.get(buffer.data, frozenset())
            for buffer, buf in e.buffers.items()
            if buf.is_global
        }
        return Watch(tuple(self._numbers), usage)
