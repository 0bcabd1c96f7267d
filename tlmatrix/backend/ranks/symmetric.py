"""Symmetric memory of a GPU that shows misuse: poison in it, canaries behind it.

PyTorch's own allocating operators are watched elsewhere (`tlmatrix.check.memory`); this memory is
of another allocator. It is filled with NaN when it is allocated, and holds more bytes than were
asked for, which nobody may write: no peer, and no kernel that takes a flag too many. So do signal
pads, which are made larger than whoever asks is told.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SymmetricGuards"]

_TAIL = 4096
"""Bytes behind each buffer."""
_WATCHED = ("empty", "rendezvous", "set_signal_pad_size", "get_signal_pad_size")
_CANARY = 0xF5
_POISON = 0xFF
"""A byte of which NaN is made in every floating dtype, and -1 in every integer."""


@dataclass(frozen=True)
class _Tail:
    """Bytes behind something of `count` elements that its words name."""

    words: str
    behind: torch.Tensor
    count: int
    itemsize: int = 4

    def element(self, byte: int) -> int:
        """The number of the element that a byte behind it would belong to."""
        return self.count + byte // self.itemsize


class SymmetricGuards:
    """The symmetric buffers that were allocated inside `watching`, and what became of them."""

    def __init__(self) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self._tails: dict[int, _Tail] = {}
        self._module: Any = symmetric
        # A size that is set is for good, and for what is allocated later.
        self._pad: int | None = None
        if hasattr(symmetric, "set_signal_pad_size"):
            self._pad = int(symmetric.get_signal_pad_size())
            symmetric.set_signal_pad_size(self._pad + _TAIL)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Symmetric memory allocated inside is poisoned, and has canaries behind it."""
        module = self._module
        originals = {name: getattr(module, name) for name in _WATCHED if hasattr(module, name)}
        original = originals["empty"]

        def empty(*size: Any, dtype: torch.dtype | None = None, device: Any = None) -> Any:  # noqa: ANN401 - PyTorch's signature
            shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
            kind = dtype or torch.get_default_dtype()
            count = torch.Size(shape).numel()
            tail = -(-_TAIL // kind.itemsize)
            whole = original(count + tail, dtype=kind, device=device)
            whole.view(torch.uint8).fill_(_POISON)
            behind = whole[count:].view(torch.uint8)
            behind.fill_(_CANARY)
            if whole.is_cuda:  # a peer may write as soon as the ranks have met
                torch.cuda.synchronize(whole.device)
            words = f"the symmetric {str(kind).removeprefix('torch.')} buffer {list(shape)}"
            self._tails[behind.data_ptr()] = _Tail(words, behind, count, kind.itemsize)
            return whole[:count].view(shape)

        def rendezvous(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - PyTorch's signature
            handle = originals["rendezvous"](*args, **options)
            if self._pad is not None:
                self._guard_pad(handle, self._pad)
            return handle

        def set_size(size: int) -> None:
            self._pad = size
            originals["set_signal_pad_size"](size + _TAIL)

        module.empty, module.rendezvous = empty, rendezvous
        if self._pad is not None:
            module.set_signal_pad_size = set_size
            module.get_signal_pad_size = lambda: self._pad
        try:
            yield
        finally:
            for name, each in originals.items():
                setattr(module, name, each)

    def _guard_pad(self, handle: Any, size: int) -> None:  # noqa: ANN401 - PyTorch's
        """Canaries behind this rank's signal pad, of `size` bytes as far as anybody knows."""
        if handle.signal_pad_size < size + _TAIL:
            return  # made before the size was set
        behind = handle.get_signal_pad(handle.rank, (_TAIL,), torch.uint8, size)
        if behind.data_ptr() not in self._tails:
            behind.fill_(_CANARY)
            words = f"the signal pad of rank {handle.rank}, of {size} bytes"
            self._tails[behind.data_ptr()] = _Tail(words, behind, size // 4)

    def findings(self) -> list[Finding]:
        """What was written behind buffers; told once, for the canaries are put back."""
        found = []
        for tail in self._tails.values():
            behind = tail.behind
            hit = (behind != _CANARY).nonzero().flatten()
            if not len(hit):
                continue
            first, last = int(hit[0]), int(hit[-1])
            behind.fill_(_CANARY)
            found.append(
                Finding(
                    "guards",
                    f"a write outside of {tail.words}: bytes {first}-{last} behind it were "
                    f"overwritten, elements {tail.element(first)}-{tail.element(last)} of "
                    f"{tail.count}",
                    pattern="behind symmetric memory",
                    wrong=len(hit),
                    hint="of this rank or of a peer: an offset of another rank, or a flag too many",
                )
            )
        return found

    def forget(self) -> None:
        """Let go of the buffers of a case that ended."""
        self._tails.clear()
