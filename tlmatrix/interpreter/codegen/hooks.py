"""Where a sanitized or covered program looks in: called beside what it does, here doing nothing.

`sanitized` overrides them to write calls of the runtime's monitor, `covered` to count; a plain
program has none of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bounds import Access
    from .context import Buf
    from .values import Val

__all__ = ["Hooks"]


class Hooks:
    """What may be watched of single elements; tile operations are overridden whole."""

    def on_read(self, access: Access) -> None:
        """Lanes are about to read."""

    def on_scalar(self, access: Access, code: str) -> str:
        """A single element read by `code`, in the middle of an expression."""
        del access
        return code

    def on_variable(self, buf: Buf, code: str) -> str:
        """A variable read by `code`."""
        del buf
        return code

    def on_write(self, access: Access, result: Val, value: Any) -> None:
        """`result`, the value of the expression `value`, is about to be stored."""

    def on_variable_write(self, buf: Buf, result: Val) -> None:
        """`result` is about to be assigned to a variable."""

    def on_loop(self, node: Any, ranged: str) -> None:
        """A serial loop is about to start; `ranged` are the arguments of its range, if any."""

    def on_turn(self, node: Any, name: str) -> None:
        """A turn of a serial loop starts; `name` is its variable, if it has one."""

    def on_loop_end(self, node: Any) -> None:
        """A serial loop has ended, by itself or by a jump."""

    def on_spread(self, buf: Buf, spread: Buf) -> None:
        """A local buffer has got one copy a lane of a parallel loop."""

    def on_collapse(self, buf: Buf, spread: Buf) -> None:
        """A local buffer is one again, of what its lanes agree on."""

    def on_guard(self, kind: str, condition: Any, test: Val) -> Val:
        """`test`, the value of `condition`, is about to decide an `if` or a `select`."""
        del kind, condition
        return test

    def unwatched(self) -> AbstractContextManager[None]:
        """What is read inside is nothing that the kernel reads."""
        return nullcontext()

    def mattering(self, where: Val | None) -> AbstractContextManager[None]:
        """Of what lanes read inside, what others than those of `where` read has no effect."""
        del where
        return nullcontext()

    def of_whole_tiles(self, *, reads: bool = False) -> AbstractContextManager[None]:
        """Lines written inside speak of tiles as the kernel has them, not as they are computed."""
        del reads
        return nullcontext()

    def choosing(self, condition: Any) -> AbstractContextManager[None]:
        """What is read inside is read where the condition holds for every lane."""
        del condition
        return nullcontext()

    def on_atomic(self, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done; with `previous` its old value is used."""
