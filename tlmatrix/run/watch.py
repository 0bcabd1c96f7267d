"""What is noted of a case while it runs: its time, what it exercises, what was checked."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.check.further import Relations
    from tlmatrix.interpreter.recorder import Recorder

__all__ = ["Watch"]


class Watch:
    """How large a case is, where its time goes, and what it exercises, if that is counted.

    And which of the checks that run the code again were asked for, and made.
    """

    def __init__(self, recorder: Recorder | None, relations: Relations) -> None:
        self.recorder = recorder
        self.relations = relations
        self.made: list[str] = []
        """The checks that ran the code again, and relations by name."""
        self._begin = time.perf_counter()
        self.elements = 0
        self.bytes = 0
        self.closeness: float | None = None
        self.distribution = ""
        """What the inputs hold (`values`), as soon as there are inputs."""
        self.failed = "judge"
        """The phase that an exception ended."""
        self.phases: dict[str, float] = {}

    def total(self) -> float:
        """Seconds since the case began."""
        return time.perf_counter() - self._begin

    def tell(self, closeness: float) -> None:
        """Hear how far off the right numbers of the case are."""
        self.closeness = closeness

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Inside, time goes to this phase, and an exception is one of it."""
        begin = time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed = name
            raise
        finally:
            spent = time.perf_counter() - begin
            self.phases[name] = self.phases.get(name, 0.0) + spent
