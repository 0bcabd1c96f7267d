"""Residency: a block that waits for flags occupies an SM slot of its rank until it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .agents import Request

if TYPE_CHECKING:
    from .world import Rank

__all__ = ["Slot"]


@dataclass
class Slot(Request):
    """Waits until a rank has a free SM slot.

    Attributes:
        rank: the rank.
        what: what needs the slot: "a block of kernel gemm", "a fill".
    """

    rank: Rank
    what: str

    def ready(self) -> bool:
        """Whether another block can be resident."""
        return self.rank.free > 0

    def describe(self) -> str:
        """The wait in words."""
        return f"for a free multiprocessor, to run {self.what}"

    def weight(self) -> int:
        """Behind waits for flags."""
        return 1

    def why(self) -> list[str]:
        """What occupies the slots, and what to do."""
        advice = (
            "blocks that wait for flags take all of them: signal without a kernel "
            "(stream_write_value32), launch what signals first, or launch fewer blocks"
        )
        return [advice]
