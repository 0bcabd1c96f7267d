"""One access of memory, as it is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agents import Agent

__all__ = ["FREE", "UNZEROED", "ZERO", "Seen"]

FREE = "free"
"""The operation of a host that lets go of symmetric memory."""
ZERO = "zero"
"""The operation of a stream that makes new symmetric memory ready."""
UNZEROED = (
    "a stream zeroes new symmetric memory, and ranks that meet in rendezvous do not wait for that "
    "(PyTorch up to 2.13); call torch.cuda.synchronize() between empty and rendezvous, or let the "
    "hosts meet once more behind it"
)
"""Why somebody may use symmetric memory before it is ready, and what to do."""


@dataclass(frozen=True)
class Seen:
    """An access.

    Attributes:
        agent: whose it is, in clocks.
        time: that agent's time; a clock that knows it knows the access.
        action: "read", "write" or "atomic".
        file: the user's file.
        line: its line.
        what: the operation: "copy", "kernel gemm", "flag".
        scope: of a flag "gpu" or "sys"; empty for an access that is no flag's.
        rank: the rank.
        who: the stream, in words.
        block: the block's index, of a block.
        launch: the identity of its launch.
    """

    agent: int
    time: int
    action: str
    file: str
    line: int
    what: str
    scope: str = ""
    rank: int = field(default=0, compare=False)
    who: str = field(default="", compare=False)
    block: tuple[int, ...] | None = field(default=None, compare=False)
    launch: int = field(default=0, compare=False)

    @classmethod
    def of(cls, task: Agent, action: str, file: str, line: int, what: str, scope: str = "") -> Seen:
        """An access that a task makes now."""
        launch = id(task.launch) if task.launch is not None else 0
        block = getattr(task, "index", None)
        time = task.clock.get(task.agent, 0)
        return cls(
            task.agent, time, action, file, line, what, scope, task.rank, task.name, block, launch
        )

    def compatible(self, other: Seen) -> bool:
        """Whether both are atomic, with scopes that include each other."""
        if not self.scope or not other.scope:
            return False
        return self.rank == other.rank or self.scope == other.scope == "sys"

    def __str__(self) -> str:
        actions = {"read": "read", "write": "written", "atomic": "updated atomically"}
        action = actions[self.action]
        if self.what == "flag":
            action = "read as a flag" if self.action == "read" else "set as a flag"
        if self.what == FREE:
            return f"freed by {self.who}, which let go of it"
        if self.what == ZERO:
            return f"zeroed by {self.who}, as symmetric_memory.empty asked"
        block = f", block {self.block}" if self.block is not None else ""
        what = f" ({self.what}{block})" if self.what != "flag" else ""
        return f"{action} by {self.who}{what}"
