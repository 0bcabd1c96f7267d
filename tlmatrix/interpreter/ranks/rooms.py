"""Room on a rank's multiprocessors: blocks that wait for flags keep theirs until they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .tasks import Request

if TYPE_CHECKING:
    from .world import Rank

__all__ = ["Room"]


@dataclass
class Room(Request):
    """A wait for room for a block.

    Attributes:
        rank: the rank.
        what: what needs it: "a block of kernel gemm", "a fill".
    """

    rank: Rank
    what: str

    def ready(self) -> bool:
        """Whether another block can be resident."""
        return self.rank.free > 0

    def describe(self) -> str:
        """The wait in words."""
        return f"for a free multiprocessor, to run {self.what}"

    def why(self) -> list[str]:
        """What takes them."""
        advice = (
            "blocks that wait for flags take all of them: signal without a kernel "
            "(stream_write_value32), launch what signals first, or launch fewer blocks"
        )
        return [advice]
