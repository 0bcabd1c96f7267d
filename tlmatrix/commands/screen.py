"""Terminal output of commands: its width, and wrapped text."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO


def screen_width(elsewhere: int) -> int:
    """Columns of the terminal; `elsewhere` if output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else elsewhere


def print_wrapped(text: str, stream: TextIO | None = None) -> None:
    """Print lines to `stream` (default: standard output), wrapped between words on a terminal.

    Continuation lines are indented by four more columns. A word longer than a line, such as a case
    id, is not broken. Lines to a file or a pipe are not wrapped.
    """
    stream = stream or sys.stdout
    if not stream.isatty():
        print(text, file=stream)
        return
    width = shutil.get_terminal_size().columns
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        wrapped = textwrap.fill(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        print(wrapped, file=stream)
