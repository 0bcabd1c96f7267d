"""Runs a whole program that was written for a GPU, unchanged, on the interpreter."""

from __future__ import annotations

import runpy
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from .device import stand_in
from .intercept import interpret

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .session import Session

__all__ = ["run_program"]


def run_program(
    path: Path,
    arguments: Sequence[str] = (),
    *,
    arch: str = "sm_90a",
    sms: int = 8,
    **options: Any,
) -> Session:
    """Run a Python script as `python path arguments…` would, with the CPU for its GPU.

    Its kernels are interpreted, its `cuda` tensors live on the CPU, its measurements are NaN.
    Whatever the script raises is raised here, `SystemExit` included.

    Args:
        path: the script; its folder becomes the first place it imports from.
        arguments: the rest of `sys.argv`.
        arch: the architecture kernels are traced for and the device claims.
        sms: the number of multiprocessors the device claims.
        options: more of `interpret`.

    Returns:
        What `interpret` gives: its `reports` are the sanitizers' findings.
    """
    with ExitStack() as stack:
        session = stack.enter_context(interpret(arch=arch, **options))
        stack.enter_context(stand_in(arch=arch, sms=sms))
        stack.enter_context(_as_script(path, arguments))
        runpy.run_path(str(path), run_name="__main__")
    return session


@contextmanager
def _as_script(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path[:0] = [str(path.resolve().parent)]
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search
