"""The user's line that is running on the host."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["caller", "spelled"]

_OWN = f"{Path(__file__).resolve().parents[2]}/"
"""Of the whole package: its guards stand between an operation and the user's line as well."""
_LIBRARIES = ("/site-packages/torch/", "/lib/python3", _OWN)


def caller() -> tuple[str, int]:
    """File and line of the innermost frame that is neither this package's nor a library's."""
    frame = sys._getframe(1)  # noqa: SLF001  # much cheaper than inspect
    while frame is not None:
        name = frame.f_code.co_filename
        if not any(part in name for part in _LIBRARIES) and not name.startswith("<"):
            return name, frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "", 0


def spelled(place: tuple[str, int]) -> str:
    """A place as a person writes it."""
    return f"{place[0]}:{place[1]}" if place[0] else "an unknown line"
