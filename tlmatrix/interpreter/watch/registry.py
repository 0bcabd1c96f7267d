"""The observers: what may watch a program.

An observer is one file of this package, and a line here. Its class, an `Observer`, is woven into
programs and writes calls of the observer's other half: an object that each launch passes as the
argument that the class names. `frontend.session.Session.observers` says where that comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .bounds import OverflowSanitizer
from .counts import CoverageCounts
from .crossings import CrossingSanitizer
from .memory import MemorySanitizer
from .nonfinite import NonfiniteTracer
from .observer import SiteTable
from .recording import Recording
from .repeats import RepeatSanitizer

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir.nodes import Kernel
    from tlmatrix.interpreter.program import Options

    from .observer import Observer

OBSERVERS: list[type[Observer]] = [
    CoverageCounts,
    CrossingSanitizer,
    MemorySanitizer,
    NonfiniteTracer,
    OverflowSanitizer,
    RepeatSanitizer,
    Recording,
]
"""In the order in which they note the same event."""


def observers(kernel: Kernel, options: Options) -> list[Observer]:
    """The observers of a variant of a kernel."""
    sites = SiteTable()
    return [each(kernel, options, sites) for each in OBSERVERS if each.wanted(options)]


def functions() -> dict[str, Callable[..., Any]]:
    """The functions that generated source calls for observers, by name."""
    return {name: function for each in OBSERVERS for name, function in each.functions.items()}
