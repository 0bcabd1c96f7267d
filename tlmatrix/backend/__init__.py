"""Backends, which run kernels, and bindings, which call the code that a spec names.

Importing this package does not import PyTorch; accessing `bind` or `execute` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend.backends import Backend, CompileBackend, backend_class, backend_named
from tlmatrix.backend.errors import (
    ArchitectureError,
    BackendUnavailableError,
    BindingError,
    DevicesError,
    EntryError,
)
from tlmatrix.backend.faults import DeviceFault, DiskError, classify_fault

if TYPE_CHECKING:
    from tlmatrix.backend.axes import refuse_unknown_axes
    from tlmatrix.backend.binding import Binding, bind, execute

__all__ = [
    "ArchitectureError",
    "Backend",
    "BackendUnavailableError",
    "Binding",
    "BindingError",
    "CompileBackend",
    "DeviceFault",
    "DevicesError",
    "DiskError",
    "EntryError",
    "backend_class",
    "backend_named",
    "bind",
    "classify_fault",
    "execute",
    "refuse_unknown_axes",
]


_LAZY = {
    "Binding": "tlmatrix.backend.binding",
    "bind": "tlmatrix.backend.binding",
    "execute": "tlmatrix.backend.binding",
    "refuse_unknown_axes": "tlmatrix.backend.axes",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
