"""The results of one call of the entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tlmatrix.check.finding import Finding
    from tlmatrix.check.tolerance import ReferenceBounds


class Results(dict[str, "torch.Tensor"]):
    """Outputs and gradients by name.

    Attributes:
        absent: the reason for each missing gradient, by name.
        parts: [parts, ...] terms of those results that are sums over ranks, by name.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        absent: Mapping[str, str] | None = None,
        parts: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.absent = dict(absent or {})
        self.parts = dict(parts or {})

    def inconsistencies(self, _bounds: ReferenceBounds, *, exact: bool) -> list[Finding]:
        """Findings between several copies of one result, of which one process has none.

        Copies agree in every bit if `exact`, otherwise within the sum of their error bounds.
        """
        del exact
        return []


def history_result(call: int, name: str) -> str:
    """The name of a result of one of the calls of a history."""
    return f"{call}:{name}"


def results_of_call(results: Mapping[str, torch.Tensor], call: int) -> dict[str, torch.Tensor]:
    """The results of one of the calls of a history, by their own names."""
    begin = history_result(call, "")
    return {
        name.removeprefix(begin): each for name, each in results.items() if name.startswith(begin)
    }
