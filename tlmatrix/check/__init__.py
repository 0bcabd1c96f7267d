"""Judge a run: numbers, memory, determinism, and relations that need no reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from tlmatrix.check.judging import judge

__all__ = ["Finding", "judge"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module's own attributes
    # Everything but findings needs torch, which `tlmatrix list` must not load.
    if name == "judge":
        from tlmatrix.check.judging import judge

        return judge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
