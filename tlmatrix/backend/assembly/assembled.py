"""What is known of a kernel once it is machine code, as plain frozen data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Assembled", "Assembly"]


@dataclass(frozen=True)
class Assembled:
    """One kernel as machine code for one architecture.

    `threads` is None where a block's size is only known at the launch. `spills` are bytes stored
    and loaded because registers ran out, `stack` the bytes of its frame, `shared_memory` the
    static and dynamic bytes of a block, `tensor_memory` the columns it allocates, `barriers` the
    named ones. `instructions` counts those of the PTX, by their full names. `warnings` are the
    assembler's.
    """

    name: str
    registers: int
    spills: int = 0
    stack: int = 0
    shared_memory: int = 0
    tensor_memory: int = 0
    barriers: int = 0
    threads: int | None = None
    instructions: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def has(self, instruction: str) -> bool:
        """Whether it uses an instruction: `tcgen05.mma` stands for all forms of it."""
        return any(
            name == instruction or name.startswith(f"{instruction}.") for name in self.instructions
        )


@dataclass(frozen=True)
class Assembly:
    """What became of one traced kernel on one architecture.

    One traced kernel can be several pieces of machine code; all that failed says `error`, and
    `stage` where (`lower`, `assemble`). `missing` says why it could not be assembled here.
    """

    kernel: str
    arch: str
    key: str
    place: str = ""
    parts: tuple[Assembled, ...] = ()
    stage: str = ""
    error: str = ""
    missing: str = ""
    lower_seconds: float = 0.0
    assemble_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data for files."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Assembly:
        """What `to_json` gave."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["parts"] = tuple(
            Assembled(**{**part, "warnings": tuple(part.get("warnings", ()))})
            for part in known.get("parts", ())
        )
        return cls(**known)
