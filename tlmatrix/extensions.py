"""Optional parts of tlmatrix, loaded for the specs that need them.

Nothing central imports them; each front end of its own (`tlmatrix bench`, `tlmatrix explain`) loads
its own, and `distributed` is loaded here.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["distributed"]


def distributed() -> Any:  # noqa: ANN401 - a module, typed where it is defined
    """`tlmatrix.distributed`, for specs with an axis `world`: entries that run on several ranks."""
    return importlib.import_module("tlmatrix.distributed")
