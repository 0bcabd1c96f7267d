"""What generated programs run in: threads, modes of PyTorch, options of a session."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from tlmatrix.interpreter.ops.gemm import FLOAT8_BITS, TF32

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from .session import Session

_HOPPER_FLOAT8_BITS = 14
"""See `ops.gemm.gemm_float8`."""


class _Entered(threading.local):
    session: Session | None = None


_entered = _Entered()


def environment(session: Session | None) -> AbstractContextManager[None]:
    """What generated programs of a session run in; enter it at once."""
    if session is not None and _entered.session is session:
        return nullcontext()
    return _environment(session)


@contextmanager
def _environment(session: Session | None) -> Iterator[None]:
    before, _entered.session = _entered.session, session
    threads = torch.get_num_threads()
    tf32 = TF32.set((session is not None and session.tf32) or TF32.get())
    hopper = session is not None and session.arch.startswith("sm_90")
    bits = FLOAT8_BITS.set(_HOPPER_FLOAT8_BITS if hopper else FLOAT8_BITS.get())
    if threads != 1:
        # Tiles are too small to share: a second thread costs more than it brings.
        torch.set_num_threads(1)
    try:
        with np.errstate(all="ignore"), without_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001
            yield
    finally:
        _entered.session = before
        if threads != 1:
            torch.set_num_threads(threads)
        FLOAT8_BITS.reset(bits)
        TF32.reset(tf32)


def without_modes() -> AbstractContextManager[object]:
    """Inside, no dispatch mode of a caller sees what is done with tensors; enter it at once."""
    # A tenth of the cost of taking the modes off their stack and putting them back.
    modes: AbstractContextManager[object] = torch._C._DisableTorchDispatch()  # noqa: SLF001
    return modes
