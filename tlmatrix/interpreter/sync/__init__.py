"""The concurrency core: agents, their vector clocks, what they wait for and in which order."""

from __future__ import annotations

__all__: list[str] = []
