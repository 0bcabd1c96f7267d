"""What generated programs run in: threads, modes of PyTorch, options of a session."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils import _python_dispatch

from tlmatrix.interpreter.ops.gemm import FLOAT8_BITS, TF32

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from tlmatrix.interpreter.session import Session

__all__ = ["environment", "unseen"]

_HOPPER_FLOAT8_BITS = 14
"""See `ops.gemm.gemm_float8`."""


@contextmanager
def environment(session: Session | None) -> Iterator[None]:
    """What generated programs of a session run in."""
    threads = torch.get_num_threads()
    tf32 = TF32.set((session is not None and session.tf32) or TF32.get())
    hopper = session is not None and session.arch.startswith("sm_90")
    bits = FLOAT8_BITS.set(_HOPPER_FLOAT8_BITS if hopper else FLOAT8_BITS.get())
    if threads != 1:
        # Tiles are too small to share: a second thread costs more than it brings.
        torch.set_num_threads(1)
    try:
        with np.errstate(all="ignore"), unseen(), torch._C.DisableTorchFunction():  # noqa: SLF001
            yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)
        FLOAT8_BITS.reset(bits)
        TF32.reset(tf32)


def unseen() -> AbstractContextManager[object]:
    """Inside, no dispatch mode of a caller sees what is done with tensors here."""
    if torch._C._len_torch_dispatch_stack() > 0:  # noqa: SLF001
        modes: AbstractContextManager[object] = _python_dispatch._disable_current_modes()  # noqa: SLF001
        return modes
    return nullcontext()
