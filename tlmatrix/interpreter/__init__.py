"""TileLang kernels on the CPU: the traced tile IR run as generated Python.

`with interpret():` redirects TileLang's entry points; see `intercept` for how, `codegen` for
what is generated and `runtime` for what it calls.

Memory that nothing has written reads as NaN (integers: a number no index can be), so a read
before a write shows.
"""

from __future__ import annotations

from .errors import ArgumentError, InterpreterError, Unsupported
from .intercept import interpret, interpreted
from .kernel import InterpretedKernel

__all__ = [
    "ArgumentError",
    "InterpretedKernel",
    "InterpreterError",
    "Unsupported",
    "interpret",
    "interpreted",
]
