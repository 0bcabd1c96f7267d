"""TileLang kernels on the CPU: the traced tile IR run as generated Python.

`with interpret():` redirects TileLang's entry points; see `intercept` for how, `generate` for
what is generated and `runtime` for what it calls. `kernel.source` shows the generated source;
with TLMATRIX_DUMP set to a folder every source is written there, annotated with the user's lines.

`interpret(sanitize=True)` runs a second variant of each program, with shadows of its memory; see
`reports` for what it finds and `watch` for how.

Importing the package imports nothing else until a name is used. What to know of the results:

- Memory that nothing has written reads as NaN (integers: a number no index can be), in every
  block anew, so a read before a write shows.
- Blocks run one after another, in the order of the loops of the grid; atomics add up in that order.
- Low-precision values are rounded at stores, casts and each operation of their dtype; matrix
  products and sums accumulate in float32, in another order than on a GPU. TF32 is an option
  (`interpret(tf32=True)`); there is no fast-math.
- The iterations of a parallel loop execute each statement together. Of those that store to one
  element the last wins; a local variable on which they disagree is poisoned after the loop.
- Integers wrap where it shows; a 32-bit sum that is an index does not, so that one past 2^31 is
  outside rather than negative.
- Kernels that use the thread index run their threads as lanes, statement by statement; blocks
  whose warps have different roles, mbarriers or asynchronous copies and products run as coroutines
  (`sync`), under a schedule that `scheduled` chooses. Waits that cannot end raise
  `DeadlockError`; accesses that nothing orders are reports of the sanitizer `races`, and raise
  `RaceError` under `scheduled`. The barriers that TileLang puts between accesses to shared memory
  are put there too. Fences and the register budget have no meaning.
- A block that spins on a flag lets others run. `simulate` runs a program on several ranks, with
  streams, symmetric memory and flags of the scope of a system (`ranks`).
- An index that is provably negative counts from the end, as TileLang has it.
- Multicast, pairs of blocks and inline code are refused (`Unsupported`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .coverage import Coverage, Feature, Recorder
    from .errors import (
        ArgumentError,
        DeadlockError,
        InterpreterError,
        LaunchError,
        RaceError,
        SynchronizationError,
        Unsupported,
    )
    from .explain import Explanation, NotMadeError, Trace
    from .frontend.intercept import interpreted
    from .frontend.interpret import Simulation, interpret, simulate, traced
    from .frontend.kernel import InterpretedKernel, TracedKernel
    from .frontend.session import Session, unrounded_factors
    from .reports import DEFAULT_SANITIZERS, SANITIZERS, Party, Report, SanitizerError, Sequences
    from .sync.externs import model_extern, until
    from .sync.flags import Pointer
    from .sync.settings import SCHEDULES, scheduled

__all__ = [
    "DEFAULT_SANITIZERS",
    "SANITIZERS",
    "SCHEDULES",
    "ArgumentError",
    "Coverage",
    "DeadlockError",
    "Explanation",
    "Feature",
    "InterpretedKernel",
    "InterpreterError",
    "LaunchError",
    "NotMadeError",
    "Party",
    "Pointer",
    "RaceError",
    "Recorder",
    "Report",
    "SanitizerError",
    "Sequences",
    "Session",
    "Simulation",
    "SynchronizationError",
    "Trace",
    "TracedKernel",
    "Unsupported",
    "interpret",
    "interpreted",
    "model_extern",
    "scheduled",
    "simulate",
    "traced",
    "unrounded_factors",
    "until",
]

# By name, so that a report that only reads what was counted does not import PyTorch.
_NAMES = {
    "coverage": ("Coverage", "Feature", "Recorder"),
    "errors": (
        "ArgumentError",
        "DeadlockError",
        "InterpreterError",
        "LaunchError",
        "RaceError",
        "SynchronizationError",
        "Unsupported",
    ),
    "explain": ("Explanation", "NotMadeError", "Trace"),
    "frontend.intercept": ("interpreted",),
    "frontend.interpret": ("Simulation", "interpret", "simulate", "traced"),
    "frontend.kernel": ("InterpretedKernel", "TracedKernel"),
    "frontend.session": ("Session", "unrounded_factors"),
    "reports": (
        "DEFAULT_SANITIZERS",
        "Party",
        "Report",
        "SanitizerError",
        "SANITIZERS",
        "Sequences",
    ),
    "sync.externs": ("model_extern", "until"),
    "sync.flags": ("Pointer",),
    "sync.settings": ("scheduled", "SCHEDULES"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found  # asked for once: functions that run often import from here
    return found
