"""Metamorphic relations that a spec lists under `relations:`.

Each calls the entry once more with changed inputs and computes the expected results from those of
the first call; no reference is needed. A bug may satisfy one relation, so a spec lists several.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.distributions import permutation, seeded_random
from tlmatrix.problem.model import Pair, PairRelation, Problem, Relation
from tlmatrix.problem.relations.batch import inverse, select, singles
from tlmatrix.spec.importing import load, refuse
from tlmatrix.spec.model.checks import FINITE
from tlmatrix.spec.model.spec import DeclaredProblem, OutputDecl
from tlmatrix.tracebacks import unwinds
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from tlmatrix.problem.model import Family, RelationKind, Tensors
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
            yield from self._permuted(decl.permute)
        elif decl.split is not None:
            yield from self._split(decl.split)
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

    def _error(self, message: str) -> Exception:
        return refuse(self.spec, ("relations", self.number), message)

    # Another call ----------------------------------------------------------------------------

    def _called_with(self, changed: Tensors) -> Problem:
        """The problem with some inputs replaced, and cotangents by their names (`dy`)."""
        problem, cotangents = self.problem, _cotangents(self.problem)
        for name, tensor in changed.items():
            old = problem.inputs.get(name, cotangents.get(name))
            if old is None:
                known = nearest(name, [*problem.inputs, *cotangents])
                raise self._error(f"there is no input {name!r}{known}")
            if old.shape != tensor.shape or old.dtype != tensor.dtype:
                shapes = f"{_describe(old)}; the relation gives {_describe(tensor)}"
                message = f"the input {name!r} is {shapes}"
                raise self._error(message)
        if problem.with_inputs is None:
            raise self._error(
                "the problem has no `with_inputs`, which a relation needs to change inputs"
            )
        made = problem.with_inputs({n: t for n, t in changed.items() if n in problem.inputs})
        return _with_cotangents(made, {n: t for n, t in changed.items() if n in cotangents})

    def _scaled(self, factors: Mapping[str, float]) -> Relation:
        gives = self.decl.gives
        for name in factors:
            if name not in self.problem.inputs:
                known = nearest(name, self.problem.inputs)
                raise self._error(f"there is no input {name!r}{known}")
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
            problems=(self._called_with(changed),),
            left=left,
        )

    def _idempotent(self, output_of: Mapping[str, str]) -> Relation:
        def sides(mine: Tensors, execute: Callable[[Problem], Tensors]) -> Pair | None:
            if any(output not in mine for output in output_of.values()):
                return None
            changed = {name: mine[output] for name, output in output_of.items()}
            got = execute(self._called_with(changed))
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
            raise self._error(f"{target!r} is not a function")
        takes = inspect.signature(function).parameters
        axes = {name: value for name, value in self.problem.values.items() if name in takes}

        def sides(mine: Tensors, execute: Callable[[Problem], Tensors]) -> Pair:
            inputs = {**self.problem.inputs, **_cotangents(self.problem)}
            try:
                answer = function(inputs, dict(mine), **axes)
            except BaseException as error:
                if unwinds(error):
                    raise
                raise self._error(f"{target} raised {type(error).__name__}: {error}") from error
            changed, expected = self._inputs_and_results(target, answer)
            got = execute(self._called_with(changed)) if changed else mine
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
                    raise self._error(f"{target}: there is no result {unknown[0]!r}{known}")
                if not expected:
                    raise self._error(f"{target} returned no expected result")
                return changed, expected
        message = "must return two mappings: changed inputs, and expected results"
        raise self._error(f"{target} {message}")

    # Along a dimension -----------------------------------------------------------------------

    def _permuted(self, dim: str) -> Iterator[Relation]:
        named = _NamedDim(self.spec, self.problem, dim)
        if named.size() < 2:
            return
        order = permutation(seeded_random(self.seed), named.size())
        tensors = {**self.problem.inputs, **_cotangents(self.problem)}
        changed = {
            name: named.select(name, tensor, order)
            for name, tensor in tensors.items()
            if named.axes(name)
        }
        yield self._relation(
            f"{dim}_permuted",
            f"permuting {dim} must permute the results",
            problems=(self._called_with(changed),),
            right=lambda results: {
                name: named.select(name, tensor, inverse(order))
                for name, tensor in results[0].items()
            },
        )

    def _split(self, dim: str) -> Iterator[Relation]:
        named = _NamedDim(self.spec, self.problem, dim)
        size = named.size()
        if size < 2:
            return
        cut = seeded_random(self.seed).randrange(1, size)
        parts = (range(cut), range(cut, size))
        values = [{**self.problem.values, dim: len(part)} for part in parts]
        if not all(map(self.spec.allows, values)):
            return
        of = self.problem.gradient_of

        def together(results: Sequence[Tensors]) -> Tensors:
            first, second = results
            found = {}
            for name, tensor in first.items():
                if axes := named.axes(name):
                    found[name] = torch.cat([tensor, second[name]], axes[0])
                elif name in of:
                    found[name] = tensor + second[name]  # Both parts contribute to this gradient.
            return found

        def rounded(results: Sequence[Tensors]) -> Tensors:
            first, second = results
            summed = (name for name in first if name in of and not named.axes(name))
            return {name: first[name].abs().double() + second[name].abs() for name in summed}

        def comparable(mine: Tensors) -> Tensors:
            return {name: mine[name] for name in mine if named.axes(name) or name in of}

        yield self._relation(
            f"{dim}_split",
            f"two calls with {cut} and {size - cut} {dim} must give what one call gives",
            problems=tuple(
                self._part(dim, each, part, named) for each, part in zip(values, parts, strict=True)
            ),
            left=comparable,
            right=together,
            rounded=rounded,
        )

    def _part(self, dim: str, values: Mapping[str, Any], part: range, named: _NamedDim) -> Problem:
        def cut(tensors: Tensors) -> dict[str, torch.Tensor]:
            return {n: named.select(n, tensor, part).contiguous() for n, tensor in tensors.items()}

        device = next(iter(self.problem.inputs.values())).device
        made = self.family.problem(self.spec, values, seed=self.seed, device=device)
        inputs = cut(self.problem.inputs)
        for name, tensor in inputs.items():
            if made.inputs[name].shape != tensor.shape:
                raise self._error(f"split: {name} has a dimension that is computed from {dim}")
        assert made.with_inputs is not None
        return _with_cotangents(made.with_inputs(inputs), cut(_cotangents(self.problem)))


@dataclass(frozen=True)
class _NamedDim:
    """The dimensions called `dim` of the tensors of a declared problem."""

    spec: Spec
    problem: Problem
    dim: str

    def select(self, name: str, tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        """The indices `order` of the dimension, of a tensor that may have it or not."""
        return select(tensor, singles(tensor, *self.axes(name)), order)

    def size(self) -> int:
        """The size of the dimension; 0 if no input has it."""
        for name, tensor in self.problem.inputs.items():
            for axis in self.axes(name):
                return int(tensor.shape[axis])
        return 0

    def axes(self, name: str) -> tuple[int, ...]:
        """The axes of an input, output, gradient or cotangent that have the name."""
        declared = self.spec.problem
        assert isinstance(declared, DeclaredProblem)
        name = self.problem.gradient_of.get(name, name)
        if name not in declared.inputs and name[:1] == "d" and name[1:] in declared.output_names:
            name = name[1:]  # A cotangent has the shape of its output.
        if name in declared.inputs:
            words = [str(size) for size in declared.inputs[name].sizes]
        else:
            output = declared.outputs[name] if isinstance(declared.outputs, dict) else None
            if isinstance(output, OutputDecl) and output.shape is not None:
                words = [str(size) for size in output.shape]
            else:
                words = [each.name for each in self.problem.outputs[name].dims]
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
