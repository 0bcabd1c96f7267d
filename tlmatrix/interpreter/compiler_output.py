"""What TileLang's compiler writes to stderr while it lowers kernels for tlmatrix itself."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_WARNING = re.compile(rb"\[\d\d:\d\d:\d\d\] [^\n]*?: Warning: [^\n]*\n?")
"""A line of TVM's log. TVM writes it past `sys.stderr`, and has no switch for it."""


@contextmanager
def without_warnings() -> Iterator[None]:
    """Inside, the compiler's warnings are dropped; the rest of stderr is written at the end.

    They are about how fast a kernel will run, such as the registers of its warp groups, and come
    again in every process that lowers it.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            rest = _WARNING.sub(b"", kept.read())
            if rest:
                os.write(2, rest)
