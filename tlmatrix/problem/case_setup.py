"""The spec, axis values, seed and device of a case, and helpers of all families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import DTYPES, torch_dtype
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


@dataclass(frozen=True)
class CaseSetup:
    """The arguments from which a family builds a problem; relations build others like it.

    `device` holds its tensors. If that is the CPU, an entry may still run on an `accelerator`.
    """

    spec: Spec
    values: Mapping[str, Value]
    seed: int
    device: torch.device
    accelerator: torch.device | None = None

    @property
    def entry_device(self) -> torch.device:
        """The device that runs the entry."""
        return self.accelerator or self.device

    def covers(self, changed: Mapping[str, Value]) -> bool:
        """Whether the spec covers the case with these axes changed.

        The spec must list each changed value on its axis, and satisfy all its constraints.
        """
        for axis, value in changed.items():
            listed = self.spec.axes.get(axis, ())
            if canonical(value) not in {canonical(each) for each in listed}:
                return False
        return self.satisfies_where({**self.values, **changed})

    def satisfies_where(self, values: Mapping[str, Value]) -> bool:
        """Whether axis values satisfy the constraints of the spec."""
        return all(bool(rule.expression.evaluate(values)) for rule in self.spec.constraints)

    def dtype(self, name: str) -> Any:  # noqa: ANN401 - a torch.dtype or its name
        """A dtype for the code under test: a torch.dtype for an entry, its name for a factory."""
        return torch_dtype(name) if self.spec.entry and name in DTYPES else name


def tile_sizes(spec: Spec, names: Mapping[str, Any]) -> dict[str, int]:
    """The tiles of the spec as numbers; expressions are evaluated with `names`."""
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
    """A key that is equal for cases with the same compiled kernel.

    With `compile_axes` in the spec: the values of its expressions. Otherwise, for an entry: all
    axes except those in `data`, which kernels take at run time. For a factory:
    the values of its arguments, and the axes in `kept`, which the compiler sees in the
    tensors; all axes if an argument cannot be evaluated with `names`.
    """
    if spec.compile_axes:
        try:
            return canonical([each.evaluate(values) for each in spec.compile_axes])
        except ExpressionError:
            return canonical(dict(values))
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


def listed_axis_values(spec: Spec) -> Iterator[tuple[tuple[str | int, ...], str, Value]]:
    """All axis values in a spec, with their location: (path, axis, value)."""
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
