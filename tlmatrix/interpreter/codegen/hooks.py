"""Where a sanitized program looks in: called beside every access, and here doing nothing.

`sanitized` overrides them to write calls of the runtime's monitor; an unsanitized program has
none of them.
"""

from __future__ import annotations

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

    def on_atomic(self, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done; with `previous` its old value is used."""
