"""Attributes of other libraries that are replaced while a context is in force.

Also the lock under which kernels are traced, and stderr while TileLang's compiler
lowers.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

_MISSING = object()


def replace_in(stack: ExitStack, replacements: Iterable[tuple[Any, str, Any]]) -> None:
    """Replace attributes, given as (owner, name, value), until a stack is closed."""
    originals: list[tuple[Any, str, Any]] = []
    stack.callback(_restore, originals)
    for owner, name, value in replacements:
        # What a class has of its own: `getattr` would give the function of a static method.
        originals.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)


def _restore(originals: list[tuple[Any, str, Any]]) -> None:
    for owner, name, original in reversed(originals):
        if original is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


@contextmanager
def replaced(replacements: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Inside, attributes are replaced."""
    with ExitStack() as stack:
        replace_in(stack, replacements)
        yield


class Shared:
    """What several contexts, of any threads, have installed together.

    Args:
        install: installs it; what it adds to the stack undoes that.
        lock: is held meanwhile.
    """

    def __init__(
        self, install: Callable[[ExitStack], None], lock: AbstractContextManager[Any]
    ) -> None:
        self._install = install
        self._lock = lock
        self._undo = ExitStack()
        self._users = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, it is installed."""
        with self._lock:
            if self._users == 0:
                self._install(self._undo)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._undo.close()


TRACING = threading.RLock()


def tracing() -> bool:
    """Whether this thread traces a kernel: then no other may be made to wait for it."""
    return TRACING._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


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
