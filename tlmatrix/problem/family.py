"""What families share: the setting-up of a case, and checks and keys from a table of names.

Importing this module does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from tlmatrix.dtypes import DTYPES, torch_dtype
from tlmatrix.problem.distributions import SPECIAL
from tlmatrix.problem.lint import lint_arguments, lint_results
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.problem.names import Names
    from tlmatrix.spec.issues import Issue, KeyPath
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
        return self.spec.allows(values)

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


def listed_axis_values(spec: Spec) -> Iterator[tuple[KeyPath, str, Value]]:
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


# Built-in families --------------------------------------------------------------------------------


class Named(Protocol):
    """The axis values of a case as plain data."""

    def names(self) -> dict[str, Any]:
        """The names for entries and expressions, without tensors."""


Setting = TypeVar("Setting", bound=Named)


class BuiltInFamily(ABC, Generic[Setting]):
    """A problem family with a table of its names; see `Family` for the attributes.

    Class attributes:
        table: its names, with the valid values of axes.
        required: axes that every spec lists, each with an example.
        data_axes: axes that do not affect the compiled kernel, which takes them at run time.
        kept: axes that the compiler sees in the tensors.
    """

    table: ClassVar[Names]
    required: ClassVar[Mapping[str, str]]
    data_axes: ClassVar[frozenset[str]]
    kept: ClassVar[tuple[str, ...]]
    optional_axes: ClassVar[frozenset[str]] = frozenset({"values", "storage"})
    special_values: ClassVar[tuple[str, ...]] = SPECIAL
    cotangents: ClassVar[bool] = False

    @property
    def axes(self) -> frozenset[str]:
        """The axes that the family reads; an entry may take others."""
        return frozenset({*self.table.axes, *self.table.settings})

    @property
    def _known(self) -> frozenset[str]:
        """The names of a case that need no tensor."""
        return self.table.others.union(self.table.axes)

    @property
    def names(self) -> frozenset[str]:
        """All names that its problems give an entry."""
        return self._known.union(self.tensors)

    @property
    def tensors(self) -> tuple[str, ...]:
        """All tensors that a case may have, results included."""
        return tuple(sorted(self.table.inputs | self.table.results))

    @property
    def relation_names(self) -> tuple[str, ...]:
        """The relations that a spec may list."""
        return self.table.relations

    @abstractmethod
    def setting(self, values: Mapping[str, Value]) -> Setting:
        """The setting of a case; raises ValueError if axis values are invalid or missing."""

    @abstractmethod
    def build(self, setup: CaseSetup, setting: Setting) -> Problem:
        """The problem of a case, with its relations; imports torch."""

    def lint_axes(self, spec: Spec) -> Iterator[Issue]:  # noqa: ARG002
        """Issues of axes that depend on each other."""
        yield from ()

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """See `Family.lint`. Axes that the family does not know belong to the entry."""
        return list(self._issues(spec))

    def _issues(self, spec: Spec) -> Iterator[Issue]:
        for path, axis, value in listed_axis_values(spec):
            if reason := self.table.explain(axis, value):
                yield spec.issue(path, f"{axis}: {reason}")
        for axis, example in self.required.items():
            if axis not in spec.axes:
                message = f"{self.table.problem} needs the axis {axis}; add {axis}: {example}"
                yield spec.issue(("axes",), message)
        yield from self.lint_axes(spec)
        yield from lint_arguments(spec, self._known.difference(self.tensors), self.tensors)
        yield from lint_results(spec, self.table.results)

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """See `Family.compile_key`."""
        names: Mapping[str, Any] = {}
        if not spec.compile_axes:  # which are expressions of axis values alone
            with suppress(ValueError):
                names = self.setting(values).names()
        return compile_key(spec, values, names, data=self.data_axes, kept=self.kept)

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """See `Family.problem`; raises ValueError if axis values are invalid."""
        return self.build(CaseSetup(spec, values, seed, device), self.setting(values))
