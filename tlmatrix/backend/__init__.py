"""Where kernels run, and how the code that a spec names is found and called.

Importing this package pulls in no PyTorch; `bind` and `execute` do, when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend.backends import Backend, backend_named
from tlmatrix.backend.errors import (
    BackendUnavailableError,
    BindingError,
    EntryError,
    user_traceback,
)
from tlmatrix.backend.resolve import make_importable, resolve

if TYPE_CHECKING:
    from tlmatrix.backend.binding import Binding, bind, execute

__all__ = [
    "Backend",
    "BackendUnavailableError",
    "Binding",
    "BindingError",
    "EntryError",
    "backend_named",
    "bind",
    "execute",
    "make_importable",
    "resolve",
    "user_traceback",
]


def __getattr__(name: str) -> object:
    if name in {"Binding", "bind", "execute"}:
        from tlmatrix.backend import binding

        return getattr(binding, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
