"""Buffers as the generated source holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .values import Val


@dataclass
class Buf:
    """A buffer of the kernel and how the generated source holds it.

    Attributes:
        name: the user's name, for messages.
        code: the NumPy array in the generated source.
        dtype: the IR's dtype.
        shape: extents, literals where static.
        scope: TileLang's memory scope.
        codec: name of the codec of low-precision memory that holds what the GPU's would: global
            memory, and what the kernel also views under another dtype.
        rounding: name of the codec to round with when a low-precision local is written, else None.
        variable: whether the buffer is a Python variable (a `T.alloc_var`).
        safe: code of what a guarded load outside yields.
        private_axes: axes along which a local buffer has one copy for each iteration.
        per_thread: whether those axes are the threads of a role.
        views: names of views of it that never change, by their code.
    """

    name: str
    code: str
    dtype: str
    shape: tuple[Val, ...]
    scope: str
    codec: str | None = None
    rounding: str | None = None
    variable: bool = False
    safe: str = "0"
    private_axes: tuple[int, ...] = ()
    per_thread: bool = False
    views: dict[str, str] = field(default_factory=dict)

    @property
    def is_global(self) -> bool:
        """Whether it lies in global memory, where TileLang guards accesses."""
        return self.scope == "global"

    @property
    def narrows(self) -> bool:
        """Whether packing an element is its conversion; it keeps infinities of `float8_e5m2`."""
        return self.codec is not None and self.codec != "e5m2"

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape in the kernel, where all of it is known when the program is emitted."""
        if any(n.lit is None for n in self.shape):
            return None
        return tuple(n.lit for n in self.shape)
