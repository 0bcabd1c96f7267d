"""The lock under which kernels are traced, and whether this thread holds it."""

from __future__ import annotations

import threading

TRACING = threading.RLock()


def tracing() -> bool:
    """Whether this thread traces a kernel: then no other may be made to wait for it."""
    return TRACING._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001
