"""The screen that a command prints to: how wide it is, and prose that fits it."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["screen_width", "tell"]


def screen_width(elsewhere: int) -> int:
    """Columns of the terminal; `elsewhere` where output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else elsewhere


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print lines to `stream` (standard output): on a terminal, folded between words.

    What is folded goes on four columns further in than its line begins. A word that is longer
    than a line, such as the id of a case, stays whole; in a file or a pipe so does every line.
    """
    stream = stream or sys.stdout
    if not stream.isatty():
        print(text, file=stream)
        return
    width = shutil.get_terminal_size().columns
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        folded = textwrap.fill(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        print(folded, file=stream)
