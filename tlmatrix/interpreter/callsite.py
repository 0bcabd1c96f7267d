"""The line of the user's program that is running."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_OWN = f"{Path(__file__).resolve().parents[1]}/"
"""The whole package: its guards, too, stand between an operation and the user's line."""
_LIBRARIES = ("/site-packages/torch/", "/lib/python3", _OWN)


@cache
def _is_users(name: str) -> bool:
    return not name.startswith("<") and not any(part in name for part in _LIBRARIES)


def caller() -> tuple[str, int]:
    """File and line of the innermost frame outside this package and the libraries it knows."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # much cheaper than inspect
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_users(name):
            return name, frame.f_lineno
        frame = frame.f_back
    return "", 0


def rendered(location: tuple[str, int]) -> str:
    """A location as `file:line`."""
    return f"{location[0]}:{location[1]}" if location[0] else "an unknown line"
