"""Rewrites that normalize a kernel, so that the emitter knows one form of each thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .externs import without_builtins, without_templates
from .memory import with_named_copies, without_packed_views, without_pointers, without_words
from .threads import (
    with_boolean_conditions,
    with_chosen_values,
    with_thread_fragments,
    without_returns,
    without_thread_loops,
)
from .vectors import (
    widened,
    with_unrounded_factors,
    without_vector_memory,
    without_vectors,
)

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir.nodes import Kernel

__all__ = ["normalized", "widened", "with_unrounded_factors", "without_externs"]


def normalized(kernel: Kernel, is_modelled: Callable[[str], bool]) -> Kernel:
    """The kernel in the form that the emitter takes.

    Args:
        kernel: as it was traced.
        is_modelled: whether an external function has a model of the user's.

    Raises:
        Unsupported: for a return inside a loop, a vector that is not made element by element, a
            fragment with a layout that threads index for themselves.
    """
    kernel = without_vector_memory(without_returns(without_thread_loops(kernel)))
    kernel = without_packed_views(with_named_copies(kernel))
    kernel = without_templates(kernel, is_modelled)
    kernel = with_boolean_conditions(without_builtins(kernel, is_modelled))
    kernel = without_vectors(without_words(without_pointers(kernel)))
    return with_thread_fragments(with_chosen_values(kernel))


def without_externs(kernel: Kernel) -> Kernel:
    """Lowered code without calls of CUDA's functions, and of those of TileLang's sources."""
    return without_builtins(without_templates(kernel, lambda _: False), lambda _: False)
