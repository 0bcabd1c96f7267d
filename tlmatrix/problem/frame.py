"""What every family needs of a spec to make a problem: names an entry sees, tiles, the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.dtypes import DTYPES, torch_dtype
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

__all__ = ["Frame", "compile_key", "places", "tile_edges"]


@dataclass(frozen=True)
class Frame:
    """The case around a problem, kept so that a relation can make another problem like it."""

    spec: Spec
    values: Mapping[str, Value]
    seed: int
    device: torch.device

    def allows(self, changed: Mapping[str, Value]) -> bool:
        """Whether the spec's author means the entry to be right with these axes changed.

        Each changed axis that the spec has must list the value, and every constraint must
        hold; an axis that the spec does not have cannot be changed.
        """
        for axis, value in changed.items():
            listed = self.spec.axes.get(axis, ())
            if canonical(value) not in {canonical(each) for each in listed}:
                return False
        return self.obeys({**self.values, **changed})

    def obeys(self, values: Mapping[str, Value]) -> bool:
        """Whether `values` satisfy the spec's constraints."""
        return all(bool(rule.expression.evaluate(values)) for rule in self.spec.constraints)

    def dtype(self, name: str) -> Any:  # noqa: ANN401 - a torch.dtype or its name
        """A dtype as this spec's callable wants it: an entry a torch.dtype, a factory its name."""
        return torch_dtype(name) if self.spec.entry and name in DTYPES else name


def tile_edges(spec: Spec, names: Mapping[str, Any]) -> dict[str, int]:
    """The spec's tiles as numbers; those that are expressions are evaluated over `names`."""
    return {
        name: edge if isinstance(edge, int) else int(edge.evaluate(names))
        for name, edge in spec.tile.items()
    }


def compile_key(
    spec: Spec,
    values: Mapping[str, Value],
    names: Mapping[str, Any],
    *,
    data: frozenset[str],
    kept: tuple[str, ...],
) -> str:
    """What tells the compiled kernels of two cases apart.

    For an entry all axes but those in `data`, which kernels with symbolic sizes take at run time.
    For a factory what its arguments evaluate to over `names`, and the axes in `kept`, which
    tensors show to the compiler; all axes where an argument needs more than `names`.
    """
    if spec.entry is not None:
        return canonical({axis: value for axis, value in values.items() if axis not in data})
    arguments: dict[str, Any] = {axis: values[axis] for axis in kept if axis in values}
    try:
        for name, value in spec.factory_args.items():
            arguments[f"factory_args.{name}"] = (
                Expression(value).evaluate(names) if isinstance(value, str) else value
            )
        return canonical(arguments)
    except (ExpressionError, TypeError):
        return canonical(dict(values))


def places(spec: Spec) -> Iterator[tuple[tuple[str | int, ...], str, Value]]:
    """Every value of every axis a spec writes down, with where: (path, axis, value)."""
    for axis, listed in spec.axes.items():
        for number, value in enumerate(listed):
            yield ("axes", axis, number), axis, value
    for tier, settings in spec.tiers.items():
        for axis, listed in (settings.axes or {}).items():
            for number, value in enumerate(listed):
                yield ("tiers", tier, "axes", axis, number), axis, value
    regressions = tuple(each.case for each in spec.regressions)
    for key, cases in (("extra_cases", spec.extra_cases), ("regressions", regressions)):
        for number, case in enumerate(cases):
            for axis, value in case.items():
                yield (key, number, axis), axis, value
    for number, case in enumerate(spec.bench.cases if spec.bench else ()):
        for axis, value in case.items():
            yield ("bench", "cases", number, axis), axis, value
    for axis, drawn in (spec.fuzz.axes if spec.fuzz else {}).items():
        for number, value in enumerate(drawn.values):
            yield ("fuzz", "axes", axis, "values", number), axis, value
        for value in {drawn.range.low, drawn.range.high} if drawn.range else ():
            yield ("fuzz", "axes", axis, "range"), axis, value
