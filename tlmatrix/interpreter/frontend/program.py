"""Runs a whole program written for a GPU, unchanged, on the interpreter."""

from __future__ import annotations

import runpy
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .device import stand_in
from .intercept import interpret
from .lowering import lowering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.interpreter.session import Session

__all__ = ["run_program"]


def run_program(
    program: Path | str,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    arch: str = "sm_90a",
    sms: int = 8,
    lower: bool = False,
    **options: Any,
) -> Session:
    """Run a script or a module as `python PROGRAM ARGUMENTS` would, with the CPU for its GPU.

    Its kernels are interpreted, its `cuda` tensors live on the CPU, its measurements are NaN.
    Exceptions of the program are raised, `SystemExit` included.

    Args:
        program: the script, whose folder is put first in `sys.path`; with `module`, the name of
            a module, and the working folder is put first.
        arguments: the rest of `sys.argv`.
        module: whether `program` is a module, as in `python -m`.
        arch: the architecture kernels are traced for, and that of the device.
        sms: the number of multiprocessors of the device.
        lower: whether TileLang lowers every kernel as well, for the errors that its compiler
            raises.
        options: more of `interpret`.

    Returns:
        The session of `interpret`: its `reports` are the sanitizers' findings.
    """
    folder = Path.cwd() if module else Path(program).resolve().parent
    with ExitStack() as stack:
        session = stack.enter_context(interpret(arch=arch, **options))
        stack.enter_context(stand_in(arch=arch, sms=sms))
        stack.enter_context(lowering(arch, every=lower))
        stack.enter_context(_as_main(str(program), folder, arguments))
        if module:
            runpy.run_module(str(program), run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(program), run_name="__main__")
    return session


@contextmanager
def _as_main(name: str, folder: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as Python does for a program."""
    argv, search = sys.argv, list(sys.path)
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search
