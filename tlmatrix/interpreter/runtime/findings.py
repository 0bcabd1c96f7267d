"""What the monitor of a launch has found: the first finding of each cause, and a count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.reports import Party, Report, element_name, source_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.program import Program, Site

    from .order import BlockOrder

__all__ = ["Findings"]


class Findings:
    """Findings of one launch.

    Attributes:
        sanitizers: those that are on.
        sites: by number the places in the user's source that access buffers.
    """

    def __init__(
        self,
        program: Program,
        sites: tuple[Site, ...],
        sanitizers: frozenset[str],
        tensors: Mapping[str, torch.Tensor],
        order: BlockOrder,
    ) -> None:
        self.sanitizers = sanitizers
        self.sites = sites
        self._kernel = program.name
        self._tensors = tensors
        self._order = order
        self._found: dict[tuple[str, int, int, int], list[Any]] = {}
        self._of_agents: list[Report] = []

    def report(
        self,
        name: str,
        site: int,
        index: tuple[int, ...],
        message: str,
        other: int = 0,
        hint: str = "",
        axis: int = 0,
    ) -> None:
        """Keep a finding of sanitizer `name`, or count it if its site and `axis` have one.

        `message` may have `{buffer}` and `{action}`; `other` is the code of the other access;
        `hint` replaces the advice that goes with all findings of the sanitizer.
        """
        if name not in self.sanitizers:
            return
        key = (name, site, self._order.site(other) if other else -1, axis)
        known = self._found.get(key)
        if known is not None:
            known[-1] += 1
            return
        self._found[key] = [
            tuple(int(i) for i in index),
            self._order.block,
            message,
            other,
            hint,
            1,
        ]

    def add(self, reports: Iterable[Report]) -> None:
        """Keep reports about the agents of a block: races between them, barriers."""
        self._of_agents += [r for r in reports if r.sanitizer in self.sanitizers]

    def reports(self) -> list[Report]:
        """All findings, in order."""
        found = list(self._of_agents)
        for (name, number, *_), (index, block, message, other, hint, count) in self._found.items():
            site = self.sites[number]
            text = message.format(buffer=element_name(site.buffer, index), action=site.action)
            report = self.about(name, site.location, site.buffer, index, block, text)
            tensor = report.tensor if site.is_global else None
            report = replace(
                report, other=self._party(other), count=count, tensor=tensor, hint=hint
            )
            found.append(report)
        return found

    def _party(self, code: int) -> Party | None:
        if not code:
            return None
        block, number = self._order.party(code)
        site = self.sites[number]
        return Party(block, *source_line(site.location), site.action)

    def about(
        self,
        name: str,
        location: Location | None,
        buffer: str,
        index: tuple[int, ...],
        block: tuple[int, ...] | None,
        message: str,
    ) -> Report:
        """A report about an element of a buffer."""
        at = source_line(location)
        report = Report(name, self._kernel, *at, buffer, index, block, message)
        return replace(report, tensor=self._tensors.get(buffer))
