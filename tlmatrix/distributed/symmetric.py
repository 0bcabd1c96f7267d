"""Guards symmetric memory on GPUs: poison in fresh buffers, canaries behind them.

`tlmatrix.check.guards` guards PyTorch's allocating operators; symmetric memory has an allocator of
its own. Buffers are filled with NaN and allocated with extra bytes at the end that no peer and no
kernel may write. Signal pads are enlarged in the same way.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAIL = 4096
"""Bytes behind each buffer."""
_WATCHED = ("empty", "rendezvous", "set_signal_pad_size", "get_signal_pad_size")
_CANARY = 0xF5
_POISON = 0xFF
"""Repeated, this byte is NaN in every floating dtype and -1 in every integer dtype."""


@dataclass(frozen=True)
class _Tail:
    """The canaries behind a buffer of `count` elements."""

    buffer: str
    behind: torch.Tensor
    count: int
    itemsize: int = 4

    def element(self, byte: int) -> int:
        """The index of the element that a byte of the canaries would belong to."""
        return self.count + byte // self.itemsize


class SymmetricGuards:
    """Guards the symmetric buffers that are allocated inside `watching`."""

    def __init__(self) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self._tails: dict[int, _Tail] = {}
        self._module: Any = symmetric
        # PyTorch applies the size to later allocations and never resets it.
        self._pad: int | None = None
        if hasattr(symmetric, "set_signal_pad_size"):
            self._pad = int(symmetric.get_signal_pad_size())
            symmetric.set_signal_pad_size(self._pad + _TAIL)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poison symmetric memory that is allocated inside, and add canaries behind it."""
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
            if whole.is_cuda:  # a peer may write right after the rendezvous
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
        """Write canaries behind this rank's signal pad, whose visible size is `size` bytes."""
        if handle.signal_pad_size < size + _TAIL:
            return  # allocated before the size was set
        behind = handle.get_signal_pad(handle.rank, (_TAIL,), torch.uint8, size)
        if behind.data_ptr() not in self._tails:
            behind.fill_(_CANARY)
            words = f"the signal pad of rank {handle.rank}, of {size} bytes"
            self._tails[behind.data_ptr()] = _Tail(words, behind, size // 4)

    def findings(self) -> list[Finding]:
        """Report writes behind buffers, and restore the canaries so that each is reported once."""
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
                    f"out-of-bounds write: bytes {first}-{last} past the end of {tail.buffer} "
                    f"were overwritten, elements {tail.element(first)}-{tail.element(last)} of "
                    f"{tail.count}",
                    pattern="behind symmetric memory",
                    wrong=len(hit),
                    hint="by this rank or a peer: the offset of another rank, or a flag too many",
                )
            )
        return found

    def forget(self) -> None:
        """Drop the buffers of a case that ended."""
        self._tails.clear()
