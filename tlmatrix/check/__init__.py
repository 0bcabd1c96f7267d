"""Checks of a case: values, memory, determinism, sanitizers and metamorphic relations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from tlmatrix.check.pipeline import judge

__all__ = ["Finding", "judge"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module's own attributes
    # `judge` imports torch, which `tlmatrix list` must not load.
    if name == "judge":
        from tlmatrix.check.pipeline import judge

        return judge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
