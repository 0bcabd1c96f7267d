"""A mistake at a path of keys, before anybody knows its line and column."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fault"]


@dataclass(frozen=True)
class Fault:
    """Something wrong at a path of keys: at the key if `at_key`, `offset` into the text if set."""

    path: tuple[str | int, ...]
    message: str
    offset: int | None = None
    at_key: bool = False
