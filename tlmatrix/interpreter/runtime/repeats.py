"""What differs when statements that every thread of a block executes are run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .indices import lanes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .codecs import Array
    from .findings import Findings


@dataclass(frozen=True)
class Stored:
    """An element that a second run stores to.

    Attributes:
        site: of the store.
        array: the memory.
        place: the index, as arrays.
        before: what was there.
        own: whether one thread alone stores there.
        read: whether it is the memory that the statements read.
    """

    site: int
    array: Array
    place: tuple[Array, ...]
    before: Array
    own: bool
    read: bool


class Again:
    """A second run of some statements: what it overwrites, in order."""

    def __init__(self) -> None:
        self.stores: list[Stored] = []

    def keep(
        self, site: int, array: Array, index: tuple[Any, ...], *, own: bool, read: bool
    ) -> None:
        """An element is about to be stored to."""
        place = lanes_of(tuple(map(np.atleast_1d, index)), None, array.shape)
        if place is not None:
            self.stores.append(Stored(site, array, place[0], array[place[0]], own, read))

    def undo(self) -> list[Stored]:
        """Put back what was there; the stores to elements that the run has changed."""
        changed = []
        seen: set[tuple[int, bytes]] = set()
        for stored in self.stores:
            key = id(stored.array), np.stack(stored.place).tobytes()
            checked = not stored.own and key not in seen
            if checked and not same(stored.before, stored.array[stored.place]):
                changed.append(stored)
            seen.add(key)
        for stored in reversed(self.stores):
            stored.array[stored.place] = stored.before
        return changed


def same(a: Any, b: Any) -> bool:
    """Whether values are equal, NaN to itself."""
    one, other = np.asarray(a), np.asarray(b)
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124


class Repeats:
    """Reports statements whose repetition by threads gives something else.

    Attributes:
        confirmed: whether the lowered code has a store to memory, by its name, at a line that
            several warps do with nothing to order them.
    """

    def __init__(self, findings: Findings, confirmed: Callable[[str, int], bool]) -> None:
        self._findings = findings
        self._confirmed = confirmed

    def again(self) -> Again:
        """Begin a second run."""
        return Again()

    def ended(
        self, again: Again, data: str, line: int, threads: int, pairs: Sequence[tuple[Any, Any]]
    ) -> None:
        """End it.

        Args:
            again: the run.
            data: the name of the memory that the statements read and write.
            line: where they read it.
            threads: how many threads execute them.
            pairs: what later statements use, after the first run and after the second.
        """
        changed = again.undo()
        stores = [s for s in again.stores if s.read]
        if not changed and all(same(a, b) for a, b in pairs):
            return
        sites = self._findings.sites
        lines = {at.line for s in stores if (at := sites[s.site].location) is not None}
        if not any(self._confirmed(data, number) for number in sorted(lines)):
            return
        shown = next((s for s in changed if s.read), stores[0])
        reads = f", which line {line} reads," if line not in lines else ""
        what = "written" if reads else "read and written"
        self._findings.report(
            "lanes",
            shown.site,
            tuple(int(i[0]) for i in shown.place),
            f"{{buffer}}{reads} is {what} by all {threads} threads that execute this statement: "
            "a warp that comes later reads what an earlier one wrote",
            hint="let one of them do it: `if T.get_thread_binding() == 0`",
        )
