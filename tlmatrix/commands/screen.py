"""How wide the screen is that a command prints to."""

from __future__ import annotations

import shutil
import sys

__all__ = ["screen_width"]


def screen_width(elsewhere: int) -> int:
    """Columns of the terminal; `elsewhere` where output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else elsewhere
