"""Warp specialization: blocks whose threads run different code, each part a coroutine.

`generate` writes a generator function for each warp role of a block; `sync` runs them.
"""

from __future__ import annotations

__all__: list[str] = []
