"""How the threads of a block run: as one agent, or as several with waits between them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .emitter import Emitter
    from .values import Val


class Agents:
    """One agent: what the threads of a block do has one order, and threads have no index.

    `threads.Threads` is the other kind.
    """

    several = False

    def in_threads(self, e: Emitter) -> bool:
        """Whether statements are run for every thread, along the thread axis."""
        del e
        return False

    def statement(self, e: Emitter, node: Any, write: Callable[[Emitter, Any], None]) -> None:
        """Write a statement."""
        write(e, node)

    def fold(self, e: Emitter, node: Any) -> Val | None:
        """The value of an expression that is the same for all threads; None for any other."""
        del e, node
        return None

    def uniform(self, e: Emitter, value: Val, what: str) -> Val:
        """A value that differs between iterations as one that does not.

        Raises:
            Unsupported: where there is no such value.
        """
        del value
        raise e.refuse(f"{what} that differs between iterations of a parallel loop")

    def varies(self, var: Any) -> None:
        """Note that the iterations in force, or threads, have different values of a variable."""

    def jump(self, e: Emitter, call: Any) -> bool:
        """Write a jump of the active threads; False where the whole block jumps."""
        del e, call
        return False

    def untracked(self) -> AbstractContextManager[None]:
        """Inside, accesses are not noted for race detection."""
        return nullcontext()
