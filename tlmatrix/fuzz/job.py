"""Jobs of fuzz workers, and the settings of a search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tlmatrix.fuzz.lost_cases import LostCase
    from tlmatrix.fuzz.search import FuzzFailure
    from tlmatrix.options.run_options import RunOptions


@dataclass(frozen=True)
class Settings:
    """The settings of a search.

    `options` are those of a run. `examples` is the number per spec, `seconds` the time for all
    specs; without either, the tier of each spec sets the number of examples.
    """

    options: RunOptions
    examples: int | None
    seconds: float | None
    workers: int
    results: Path
    roots: tuple[Path, ...] = ()
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The parts of the sources of each spec when the search began (`tlmatrix.run.sources`)."""


@dataclass(frozen=True)
class Job:
    """A part of a search; or `lost`, a case to shrink.

    On a backend that compiles kernels, its cases share the kernels of one `configuration`, of which
    each number stands for another.
    """

    path: str
    tier: str
    seed: int = 0
    examples: int | None = None
    seconds: float | None = None
    known: tuple[FuzzFailure, ...] = ()
    lost: LostCase | None = None
    configuration: int = 0
