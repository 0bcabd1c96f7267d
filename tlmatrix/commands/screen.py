"""Terminal output of commands: its width, wrapped text, and a console."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.console import Console


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


def console_on(stream: TextIO, elsewhere: int = 120) -> Console:
    """A console on a stream, `elsewhere` columns wide if that is no terminal."""
    from rich.console import Console

    console = Console(file=stream)
    return console if console.is_terminal else Console(file=stream, width=elsewhere)


@contextmanager
def console_on_output() -> Iterator[Console]:
    """A console on the real output: file descriptor 1 is redirected while a case runs here."""
    from rich.console import Console

    try:
        descriptor = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):
        yield Console(file=sys.stdout)
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yield console_on(file)


def show(console: Console, text: str) -> None:
    """Print text as it is, in lines that are not wrapped."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
