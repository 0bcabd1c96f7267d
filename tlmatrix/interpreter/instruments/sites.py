"""Sites: the places in the user's source that access a buffer, by number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.values import is_float
from tlmatrix.interpreter.program import Site, Watch

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter

_ACQUIRING = ("acquire", "both", "unsaid")
_RELEASING = ("release", "both", "unsaid")
_SHARED = ("global", "shared", "shared.dyn", "shared.tmem")


class SiteTable:
    """Numbers sites."""

    def __init__(self) -> None:
        self._numbers: dict[Site, int] = {}

    def number(
        self, e: Emitter, buf: Buf, action: str, *, orders: bool = False, kind: str = ""
    ) -> int:
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
            rounds=(kind or atomic.kind) == "add"
            and is_float(buf.dtype)
            and not atomic.reorderable,
        )
        return self._numbers.setdefault(site, len(self._numbers))

    def arithmetic(self, e: Emitter) -> int:
        """The number of the site of arithmetic at the current line, which has no buffer."""
        site = Site(e.w.location, "", "read", local=False, is_global=False)
        return self._numbers.setdefault(site, len(self._numbers))

    def plan(self, e: Emitter) -> Watch:
        """What the program's monitor needs to know."""
        usage = {
            buf.name: e.facts.usage.get(buffer.data, frozenset())
            for buffer, buf in e.buffers.items()
            if buf.is_global
        }
        return Watch(tuple(self._numbers), usage)
