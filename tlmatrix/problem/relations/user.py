"""Metamorphic relations that a spec lists under `relations:`.

Each calls the entry once more with changed inputs and computes the expected results from those of
the first call; no reference is needed. A bug may satisfy one relation, so a spec lists several.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from tlmatrix.problem.model import Pair, PairRelation, Problem, Relation
from tlmatrix.problem.relations.batch import Batch, NotComposableError
from tlmatrix.spec.importing import load, refuse
from tlmatrix.spec.model.checks import FINITE
from tlmatrix.spec.model.spec import DeclaredProblem, OutputDecl
from tlmatrix.tracebacks import unwinds
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from tlmatrix.problem.model import Family, RelationKind, Tensors
    from tlmatrix.problem.relations.batch import Along
    from tlmatrix.spec.model.spec import RelationDecl, Spec


def with_user_relations(
    spec: Spec, family: Family, problem: Problem, seed: int, environment: Mapping[str, str]
) -> Problem:
    """The problem with the relations that its spec lists.

    If the spec lists some of the problem's own by name, the others are dropped. `environment` has
    `arch` and `backend`, for `when:`.

    Iterating over the relations raises SpecError if one does not fit the problem.
    """
    if not spec.relations:
        return problem
    named = [each for each in spec.relations if each.name and ":" not in each.name]
    chosen = {each.name for each in named} - {FINITE}

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            if kind != "relations" or not chosen or relation.name in chosen:
                yield relation
        if kind != "relations":
            return
        for number, each in enumerate(spec.relations):
            names = {**problem.values, **environment}
            if each.when is None or each.when.evaluate(names):
                yield from _UserRelation(spec, number, each, family, problem, seed).relations()

    return replace(problem, relations=relations)


@dataclass(frozen=True)
class _UserRelation:
    """Entry `number` of `relations:` in a spec, for one problem."""

    spec: Spec
    number: int
    decl: RelationDecl
    family: Family
    problem: Problem
    seed: int

    def relations(self) -> Iterator[Relation]:
        """The relation; none if the dimension it needs has fewer than two elements."""
        decl = self.decl
        if decl.permute is not None:
            because = "permuting {dim} must permute the results"
            yield from self._along(decl.permute, _Elements.permuted, because)
        elif decl.split is not None:
            because = "two calls with {parts} {dim} must give what one call gives"
            yield from self._along(decl.split, _Elements.split, because)
        elif decl.scale is not None:
            yield self._scaled(decl.scale)
        elif decl.idempotent is not None:
            yield self._idempotent(decl.idempotent)
        elif decl.name == FINITE:
            yield self._finite()
        elif decl.name is not None and ":" in decl.name:
            yield self._from_function(decl.name)

    def _relation(self, name: str, because: str, **parts: Any) -> Relation:  # noqa: ANN401 - Relation's own
        because = self.decl.because or because
        of = PairRelation if "sides" in parts else Relation
        return of(name, "relations", exact=self.decl.exact, because=because, **parts)

    def error(self, message: str) -> Exception:
        """An error at the relation in the spec."""
        return refuse(self.spec, ("relations", self.number), message)

    # Another call ----------------------------------------------------------------------------

    def called_with(self, changed: Tensors) -> Problem:
        """The problem with some inputs replaced, and cotangents by their names (`dy`)."""
        problem, cotangents = self.problem, _cotangents(self.problem)
        for name, tensor in changed.items():
            old = problem.inputs.get(name, cotangents.get(name))
            if old is None:
                known = nearest(name, [*problem.inputs, *cotangents])
                raise self.error(f"there is no input {name!r}{known}")
            if old.shape != tensor.shape or old.dtype != tensor.dtype:
                shapes = f"{_describe(old)}; the relation gives {_describe(tensor)}"
                message = f"the input {name!r} is {shapes}"
                raise self.error(message)
        if problem.with_inputs is None:
            raise self.error(
                "the problem has no `with_inputs`, which a relation needs to change inputs"
            )
        made = problem.with_inputs({n: t for n, t in changed.items() if n in problem.inputs})
        return _with_cotangents(made, {n: t for n, t in changed.items() if n in cotangents})

    def _scaled(self, factors: Mapping[str, float]) -> Relation:
        gives = self.decl.gives
        for name in factors:
            if name not in self.problem.inputs:
                known = nearest(name, self.problem.inputs)
                raise self.error(f"there is no input {name!r}{known}")
        changed = {
            name: (self.problem.inputs[name] * _factor(by)).to(self.problem.inputs[name].dtype)
            for name, by in factors.items()
        }
        of = {name: gives.get(name, 1.0) for name in self.problem.outputs}
        common = {of[name] for name in self.problem.cotangents}
        for gradient, name in self.problem.gradient_of.items():
            if len(common) == 1:
                of[gradient] = min(common) / factors.get(name, 1.0)
            else:
                del of[gradient]  # A sum of terms with different factors.

        def left(mine: Tensors) -> Tensors:
            return {name: mine[name] * _factor(by) for name, by in of.items() if name in mine}

        scaled = ", ".join(f"{by:g} {name}" for name, by in factors.items())
        expected = ", ".join(f"{by:g} {name}" for name, by in gives.items()) or "the same"
        return self._relation(
            "scaled",
            f"{scaled} must give {expected}",
            problems=(self.called_with(changed),),
            left=left,
        )

    def _idempotent(self, output_of: Mapping[str, str]) -> Relation:
        def sides(mine: Tensors, execute: Callable[[Problem], Tensors]) -> Pair | None:
            if any(output not in mine for output in output_of.values()):
                return None
            changed = {name: mine[output] for name, output in output_of.items()}
            got = execute(self.called_with(changed))
            return Pair({output: mine[output] for output in output_of.values()}, got)

        passed = ", ".join(f"{output} as {name}" for name, output in output_of.items())
        return self._relation("idempotent", f"{passed} must give the same again", sides=sides)

    def _finite(self) -> Relation:
        def sides(mine: Tensors, _execute: Callable[[Problem], Tensors]) -> Pair:
            floating = {n: tensor for n, tensor in mine.items() if tensor.is_floating_point()}
            return Pair({n: tensor.nan_to_num(0, 0, 0) for n, tensor in floating.items()}, floating)

        return self._relation(FINITE, "", sides=sides, words="a finite number")

    def _from_function(self, target: str) -> Relation:
        """The relation of a user's function of inputs and results.

        It returns the inputs to call the entry with, and the expected results.
        """
        function = load(self.spec, ("relations", self.number, "name"), target)
        if not callable(function):
            raise self.error(f"{target!r} is not a function")
        takes = inspect.signature(function).parameters
        axes = {name: value for name, value in self.problem.values.items() if name in takes}

        def sides(mine: Tensors, execute: Callable[[Problem], Tensors]) -> Pair:
            inputs = {**self.problem.inputs, **_cotangents(self.problem)}
            try:
                answer = function(inputs, dict(mine), **axes)
            except BaseException as error:
                if unwinds(error):
                    raise
                raise self.error(f"{target} raised {type(error).__name__}: {error}") from error
            changed, expected = self._inputs_and_results(target, answer)
            got = execute(self.called_with(changed)) if changed else mine
            return Pair(expected, got)

        return self._relation(
            target.rpartition(":")[2], "", sides=sides, words="the expected results"
        )

    def _inputs_and_results(self, target: str, answer: object) -> tuple[Tensors, Tensors]:
        match answer:
            case (Mapping() as changed, Mapping() as expected):
                unknown = [name for name in expected if name not in self.problem.outputs]
                if unknown:
                    known = nearest(unknown[0], self.problem.outputs)
                    raise self.error(f"{target}: there is no result {unknown[0]!r}{known}")
                if not expected:
                    raise self.error(f"{target} returned no expected result")
                return changed, expected
        message = "must return two mappings: changed inputs, and expected results"
        raise self.error(f"{target} {message}")

    # Along a dimension -----------------------------------------------------------------------

    def _along(
        self, dim: str, kind: Callable[[_Elements], Relation | None], because: str
    ) -> Iterator[Relation]:
        """A relation of a batch, whose sequences are the indices of a dimension."""
        elements = _Elements(self, dim, self.problem)
        found = kind(elements) if len(elements.lengths) > 1 else None
        if found is not None:
            parts = " and ".join(str(len(_Elements(self, dim, p).lengths)) for p in found.problems)
            yield replace(
                found,
                name=found.name.replace("batch", dim),
                exact=self.decl.exact,
                because=self.decl.because or because.format(dim=dim, parts=parts),
            )


@dataclass(frozen=True)
class _Elements(Batch):
    """A declared problem as a batch: each index of the dimension `dim` is a sequence."""

    user: _UserRelation
    dim: str
    case: Problem

    poison: ClassVar[float] = 1.0

    @property
    def seed(self) -> int:
        """See `Batch`."""
        return self.user.seed

    @property
    def lengths(self) -> Sequence[tuple[int, int]]:
        """See `Batch`; none if no input has the dimension."""
        for name, tensor in self.case.inputs.items():
            for axis in self._axes(name):
                return ((1, 1),) * int(tensor.shape[axis])
        return ()

    @property
    def summed(self) -> Collection[str]:
        """See `Batch`: both parts of a split contribute to gradients."""
        return self.case.gradient_of

    def along(self, name: str) -> Along:
        """See `Batch`; also of a cotangent."""
        return dict.fromkeys(self._axes(name), (1,) * len(self.lengths))

    def composed(self, origins: Sequence[int], lengths: Sequence[int], factor: float = 1.0) -> Self:
        """See `Batch`: all elements in another order, or some, in a case of fewer."""
        del lengths, factor
        case, user = self.case, self.user
        tensors = {**case.inputs, **_cotangents(case)}
        parts = {name: self.part(name, each, origins) for name, each in tensors.items()}
        if len(origins) == len(self.lengths):
            moved = {name: part for name, part in parts.items() if self._axes(name)}
            return replace(self, case=user.called_with(moved))
        values = {**case.values, self.dim: len(origins)}
        if not user.spec.allows(values):
            raise NotComposableError
        device = next(iter(case.inputs.values())).device
        made = user.family.problem(user.spec, values, seed=user.seed, device=device)
        parts = {name: part.contiguous() for name, part in parts.items()}
        for name in case.inputs:
            if made.inputs[name].shape != parts[name].shape:
                raise user.error(f"split: {name} has a dimension that is computed from {self.dim}")
        assert made.with_inputs is not None
        made = made.with_inputs({name: parts.pop(name) for name in case.inputs})
        return replace(self, case=_with_cotangents(made, parts))

    def problem(self) -> Problem:
        """See `Batch`."""
        return self.case

    def _axes(self, name: str) -> tuple[int, ...]:
        """The axes of an input, output, gradient or cotangent that are the dimension."""
        declared = self.user.spec.problem
        assert isinstance(declared, DeclaredProblem)
        name = self.case.gradient_of.get(name, name)
        if name not in declared.inputs and name[:1] == "d" and name[1:] in declared.output_names:
            name = name[1:]  # A cotangent has the shape of its output.
        if name in declared.inputs:
            words = [str(size) for size in declared.inputs[name].sizes]
        else:
            output = declared.outputs[name] if isinstance(declared.outputs, dict) else None
            if isinstance(output, OutputDecl) and output.shape is not None:
                words = [str(size) for size in output.shape]
            else:
                words = [each.name for each in self.case.outputs[name].dims]
        return tuple(axis for axis, word in enumerate(words) if word == self.dim)


def _cotangents(problem: Problem) -> dict[str, torch.Tensor]:
    """The cotangents by the names under which entries and kernels take them (`dy`)."""
    known = {id(tensor) for tensor in problem.cotangents.values()}
    return {
        name: value
        for name, value in problem.names.items()
        if isinstance(value, torch.Tensor)
        and name not in problem.inputs
        and (id(value) in known or (name[:1] == "d" and name[1:] in problem.returns))
    }


def _with_cotangents(problem: Problem, given: Tensors) -> Problem:
    """The problem with some cotangents replaced, by their names."""
    new = {id(problem.names[name]): tensor for name, tensor in given.items()}
    cotangents = {name: new.get(id(old), old) for name, old in problem.cotangents.items()}
    return replace(problem, cotangents=cotangents, names={**problem.names, **given})


def _factor(by: float) -> float | int:
    """A factor as an int if it is a whole number, so that integer tensors keep their dtype."""
    return int(by) if float(by).is_integer() else by


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
