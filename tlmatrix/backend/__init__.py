"""Backends, which run kernels, and bindings, which call the code that a spec names.

Importing this package does not import PyTorch; `binding` does.
"""

from __future__ import annotations

from tlmatrix.backend.backends import Backend, CompileBackend, backend_class, backend_named
from tlmatrix.backend.errors import (
    ArchitectureError,
    BackendUnavailableError,
    BindingError,
    DevicesError,
    EntryError,
)
from tlmatrix.backend.faults import DeviceFault, DiskError, classify_fault

__all__ = [
    "ArchitectureError",
    "Backend",
    "BackendUnavailableError",
    "BindingError",
    "CompileBackend",
    "DeviceFault",
    "DevicesError",
    "DiskError",
    "EntryError",
    "backend_class",
    "backend_named",
    "classify_fault",
]
