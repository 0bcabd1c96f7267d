"""Attributes of other libraries that are replaced while a context is in force."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

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
