"""Symmetric memory of a GPU that shows misuse: poison in it, canaries behind it.

PyTorch's own allocating operators are watched elsewhere (`tlmatrix.check.memory`); this memory is
of another allocator. It is filled with NaN when it is allocated, and holds more bytes than were
asked for, which nobody may write: no peer, and no kernel that takes a flag too many.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SymmetricGuards"]

_TAIL = 4096
"""Bytes behind each buffer."""
_CANARY = 0xF5
_POISON = 0xFF
"""A byte of which NaN is made in every floating dtype, and -1 in every integer."""


class SymmetricGuards:
    """The symmetric buffers that were allocated inside `watching`, and what became of them."""

    def __init__(self) -> None:
        self._tails: list[tuple[str, torch.Tensor]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Symmetric memory allocated inside is poisoned, and has canaries behind it."""
        import torch.distributed._symmetric_memory as symmetric

        module: Any = symmetric
        original = module.empty

        def empty(*size: Any, dtype: torch.dtype | None = None, device: Any = None) -> Any:  # noqa: ANN401 - PyTorch's signature
            shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
            kind = dtype or torch.get_default_dtype()
            count = torch.Size(shape).numel()
            tail = -(-_TAIL // kind.itemsize)
            whole = original(count + tail, dtype=kind, device=device)
            whole.view(torch.uint8).fill_(_POISON)
            behind = whole[count:].view(torch.uint8)
            behind.fill_(_CANARY)
            words = f"the symmetric {str(kind).removeprefix('torch.')} buffer {list(shape)}"
            self._tails.append((words, behind))
            return whole[:count].view(shape)

        module.empty = empty
        try:
            yield
        finally:
            module.empty = original

    def findings(self) -> list[Finding]:
        """What was written behind buffers; told once, for the canaries are put back."""
        found = []
        for words, behind in self._tails:
            hit = (behind != _CANARY).nonzero().flatten()
            if not len(hit):
                continue
            first, last = int(hit[0]), int(hit[-1])
            behind.fill_(_CANARY)
            found.append(
                Finding(
                    "guards",
                    f"a write outside of {words}: bytes {first}-{last} behind it were overwritten",
                    pattern="behind symmetric memory",
                    wrong=len(hit),
                    hint="of this rank or of a peer: an offset of another rank, or a flag too many",
                )
            )
        return found

    def forget(self) -> None:
        """Let go of the buffers of a case that ended."""
        self._tails.clear()
