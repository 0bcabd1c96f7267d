"""Errors of generated programs, with the user's line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import InterpreterError, Unsupported

from .tracing import written_at

if TYPE_CHECKING:
    from .programs import LoadedProgram

__all__ = ["located"]


def located(error: Exception, loaded: LoadedProgram, prim_func: Any) -> Exception:
    """The error with the user's line, found through the generated line that was running."""
    program = loaded.program
    location, generated = None, ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == loaded.filename:
            location = program.locations[trace.tb_lineno - 1]
            generated = program.source.splitlines()[trace.tb_lineno - 1].strip()
        trace = trace.tb_next
    place = location or written_at(prim_func) or "an unknown line"
    where = f"{place}, in kernel {program.name}"
    if isinstance(error, InterpreterError):
        return type(error)(f"{error}\n  at {where}")
    if isinstance(error, Unsupported):
        return Unsupported(f"{error}\n  at {where}")
    if isinstance(error, AssertionError):
        return InterpreterError(f"assertion failed: {error}\n  at {where}")
    return InterpreterError(
        f"the interpreter failed: {type(error).__name__}: {error}\n  at {where}\n"
        f"  in the generated line: {generated}"
    )
