"""Properties that a spec names itself: oracles where nobody has a reference.

Each makes another call of the entry from the inputs, and says what must come out: in terms of what
came out before, never of what is right. What holds for wrong results as well is no property; name
several.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.problem.model import Pair, Problem, Relation
from tlmatrix.problem.relate import chooser, permutation
from tlmatrix.spec.importing import load, refuse
from tlmatrix.spec.model.parts import OutputDecl
from tlmatrix.spec.model.relations import FINITE
from tlmatrix.spec.model.spec import DeclaredProblem
from tlmatrix.words import nearest, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from tlmatrix.problem.model import Family, RelationKind, Tensors
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Property, Spec

__all__ = ["lint_properties", "with_properties"]


def lint_properties(spec: Spec, family: Family) -> Iterator[Issue]:
    """Names of properties that a family does not have; one that does not say has any."""
    known: Iterable[str] | None = getattr(family, "properties", None)
    for number, each in enumerate(spec.properties):
        name = each.name
        if known is None or name is None or ":" in name or name in (FINITE, *known):
            continue
        hint = suggestion(name, [FINITE, *known], "There are")
        message = f"unknown property {name!r}{hint}, or package.module:name"
        yield spec.issue(("properties", number), message)


def with_properties(
    spec: Spec, family: Family, problem: Problem, seed: int, environment: Mapping[str, str]
) -> Problem:
    """The problem with the properties that its spec names.

    `environment` gives `arch` and `backend`. Raises SpecError, when a property is looked at, where
    it does not fit the problem.
    """
    if not spec.properties:
        return problem
    named = [each for each in spec.properties if each.name and ":" not in each.name]
    chosen = {each.name for each in named} - {FINITE}

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            if kind != "property" or not chosen or relation.name in chosen:
                yield relation
        if kind != "property":
            return
        for number, each in enumerate(spec.properties):
            names = {**problem.values, **environment}
            if each.when is None or each.when.evaluate(names):
                law = _Law(spec, number, each, family, problem, seed)
                yield from law.relations()

    return replace(problem, relations=relations)


@dataclass(frozen=True)
class _Law:
    """One property of a spec, for one problem."""

    spec: Spec
    number: int
    said: Property
    family: Family
    problem: Problem
    seed: int

    def relations(self) -> Iterator[Relation]:
        """The relation it makes; none where the case has nothing to show it on."""
        said = self.said
        if said.permute is not None:
            yield from self._permuted(said.permute)
        elif said.split is not None:
            yield from self._split(said.split)
        elif said.scale is not None:
            yield self._scaled(said.scale)
        elif said.idempotent is not None:
            yield self._idempotent(said.idempotent)
        elif said.name == FINITE:
            yield self._finite()
        elif said.name is not None and ":" in said.name:
            yield self._told(said.name)

    def _relation(self, name: str, because: str, **parts: Any) -> Relation:  # noqa: ANN401 - Relation's own
        because = self.said.because or because
        return Relation(name, "property", exact=self.said.exact, because=because, **parts)

    def _wrong(self, message: str) -> Exception:
        return refuse(self.spec, ("properties", self.number), message)

    # Another call ----------------------------------------------------------------------------

    def _called_with(self, changed: Tensors) -> Problem:
        """The problem with other inputs, and other cotangents under the names they have (`dy`)."""
        problem, cotangents = self.problem, _cotangents(self.problem)
        for name, tensor in changed.items():
            old = problem.inputs.get(name, cotangents.get(name))
            if old is None:
                known = nearest(name, [*problem.inputs, *cotangents])
                raise self._wrong(f"there is no input {name!r}{known}")
            if old.shape != tensor.shape or old.dtype != tensor.dtype:
                message = f"the input {name!r} is {_words(old)}, and would become {_words(tensor)}"
                raise self._wrong(message)
        if problem.with_inputs is None:
            raise self._wrong("the problem offers no `with_inputs`, so it has no other inputs")
        made = problem.with_inputs({n: t for n, t in changed.items() if n in problem.inputs})
        return _with_cotangents(made, {n: t for n, t in changed.items() if n in cotangents})

    def _scaled(self, factors: Mapping[str, float]) -> Relation:
        gives = self.said.gives
        for name in factors:
            if name not in self.problem.inputs:
                known = nearest(name, self.problem.inputs)
                raise self._wrong(f"there is no input {name!r}{known}")
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
                del of[gradient]  # A sum of terms that are multiplied by different numbers.

        def left(mine: Tensors) -> Tensors:
            return {name: mine[name] * _factor(by) for name, by in of.items() if name in mine}

        told = ", ".join(f"{by:g} {name}" for name, by in factors.items())
        gives_words = ", ".join(f"{by:g} {name}" for name, by in gives.items()) or "the same"
        return self._relation(
            "scaled",
            f"{told} must give {gives_words}",
            problems=(self._called_with(changed),),
            left=left,
            right=lambda results: results[0],
        )

    def _idempotent(self, places: Mapping[str, str]) -> Relation:
        def sides(mine: Tensors, execute: Callable[[Problem], Tensors]) -> Pair | None:
            if any(output not in mine for output in places.values()):
                return None
            changed = {name: mine[output] for name, output in places.items()}
            got = execute(self._called_with(changed))
            return Pair({output: mine[output] for output in places.values()}, got)

        told = ", ".join(f"{output} as {name}" for name, output in places.items())
        return self._relation("idempotent", f"{told} must give the same once more", sides=sides)

    def _finite(self) -> Relation:
        def sides(mine: Tensors, _execute: Callable[[Problem], Tensors]) -> Pair:
            floating = {n: tensor for n, tensor in mine.items() if tensor.is_floating_point()}
            return Pair({n: tensor.nan_to_num(0, 0, 0) for n, tensor in floating.items()}, floating)

        return self._relation(FINITE, "", sides=sides, words="a finite number")

    def _told(self, target: str) -> Relation:
        """A function of the user's says what to call the entry with, and what must come out."""
        law = load(self.spec, ("properties", self.number, "name"), target)
        if not callable(law):
            raise self._wrong(f"{target!r} is not a function")
        takes = inspect.signature(law).parameters
        axes = {name: value for name, value in self.problem.values.items() if name in takes}

        def sides(mine: Tensors, execute: Callable[[Problem], Tensors]) -> Pair:
            inputs = {**self.problem.inputs, **_cotangents(self.problem)}
            try:
                answer = law(inputs, dict(mine), **axes)
            except Exception as error:
                raise self._wrong(f"{target} raised {type(error).__name__}: {error}") from error
            changed, expected = self._answer(target, answer)
            got = execute(self._called_with(changed)) if changed else mine
            return Pair(expected, got)

        return self._relation(target.rpartition(":")[2], "", sides=sides, words="what it says")

    def _answer(self, target: str, answer: object) -> tuple[Tensors, Tensors]:
        match answer:
            case (Mapping() as changed, Mapping() as expected):
                unknown = [name for name in expected if name not in self.problem.outputs]
                if unknown:
                    known = nearest(unknown[0], self.problem.outputs)
                    raise self._wrong(f"{target}: there is no result {unknown[0]!r}{known}")
                if not expected:
                    raise self._wrong(f"{target} says of no result what it must be")
                return changed, expected
        message = "must return two mappings: inputs to call with, and results that must come out"
        raise self._wrong(f"{target} {message}")

    # Along a dimension -----------------------------------------------------------------------

    def _permuted(self, dim: str) -> Iterator[Relation]:
        import torch

        places = _Places(self.spec, self.problem, dim)
        size = places.size()
        if size < 2:
            return
        order = torch.tensor(permutation(chooser(self.seed), size))

        def moved(name: str, tensor: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            for axis in places.of(name):
                tensor = tensor.index_select(axis, by.to(tensor.device))
            return tensor

        tensors = {**self.problem.inputs, **_cotangents(self.problem)}
        changed = {
            name: moved(name, tensor, order) for name, tensor in tensors.items() if places.of(name)
        }
        yield self._relation(
            f"{dim}_permuted",
            f"{dim} in another order must give the same in that order",
            problems=(self._called_with(changed),),
            left=lambda mine: mine,
            right=lambda results: {
                name: moved(name, tensor, order.argsort()) for name, tensor in results[0].items()
            },
        )

    def _split(self, dim: str) -> Iterator[Relation]:
        import torch

        places = _Places(self.spec, self.problem, dim)
        size = places.size()
        if size < 2:
            return
        cut = chooser(self.seed).randrange(1, size)
        parts = (slice(0, cut), slice(cut, size))
        values = [{**self.problem.values, dim: part.stop - part.start} for part in parts]
        if not all(rule.expr.evaluate(each) for rule in self.spec.where for each in values):
            return
        of = self.problem.gradient_of

        def together(results: Any) -> Tensors:  # noqa: ANN401 - two mappings of tensors
            first, second = results
            found = {}
            for name, tensor in first.items():
                if axes := places.of(name):
                    found[name] = torch.cat([tensor, second[name]], axes[0])
                elif name in of:
                    found[name] = tensor + second[name]  # Both parts give to this gradient.
            return found

        def comparable(mine: Tensors) -> Tensors:
            return {name: mine[name] for name in mine if places.of(name) or name in of}

        yield self._relation(
            f"{dim}_split",
            f"two calls with {cut} and {size - cut} {dim} must give what one call gives",
            problems=tuple(
                self._part(dim, each, part, places)
                for each, part in zip(values, parts, strict=True)
            ),
            left=comparable,
            right=together,
        )

    def _part(self, dim: str, values: Mapping[str, Any], part: slice, places: _Places) -> Problem:
        def cut(name: str, tensor: torch.Tensor) -> torch.Tensor:
            for axis in places.of(name):
                tensor = tensor.narrow(axis, part.start, part.stop - part.start)
            return tensor.contiguous()

        device = next(iter(self.problem.inputs.values())).device
        made = self.family.problem(self.spec, values, seed=self.seed, device=device)
        inputs = {name: cut(name, tensor) for name, tensor in self.problem.inputs.items()}
        for name, tensor in inputs.items():
            if made.inputs[name].shape != tensor.shape:
                raise self._wrong(f"split: {name} has a dimension that is computed from {dim}")
        assert made.with_inputs is not None
        cotangents = {name: cut(name, tensor) for name, tensor in _cotangents(self.problem).items()}
        return _with_cotangents(made.with_inputs(inputs), cotangents)


@dataclass(frozen=True)
class _Places:
    """Which dimensions of a declared problem's tensors are the one of a name."""

    spec: Spec
    problem: Problem
    dim: str

    def size(self) -> int:
        """How long it is."""
        for name, tensor in self.problem.inputs.items():
            for axis in self.of(name):
                return int(tensor.shape[axis])
        return 0

    def of(self, name: str) -> tuple[int, ...]:
        """The places of the dimension in an input, an output, a gradient or a cotangent."""
        declared = self.spec.problem
        assert isinstance(declared, DeclaredProblem)
        name = self.problem.gradient_of.get(name, name)
        if name not in declared.inputs and name[:1] == "d" and name[1:] in declared.output_names:
            name = name[1:]  # A cotangent is shaped as its output.
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
    """What gradients are taken with, by the names that an entry or a kernel may know (`dy`)."""
    import torch

    known = {id(tensor) for tensor in problem.cotangents.values()}
    return {
        name: value
        for name, value in problem.names.items()
        if isinstance(value, torch.Tensor)
        and name not in problem.inputs
        and (id(value) in known or (name[:1] == "d" and name[1:] in problem.returns))
    }


def _with_cotangents(problem: Problem, given: Tensors) -> Problem:
    """The problem with other cotangents, by their names."""
    new = {id(problem.names[name]): tensor for name, tensor in given.items()}
    cotangents = {name: new.get(id(old), old) for name, old in problem.cotangents.items()}
    return replace(problem, cotangents=cotangents, names={**problem.names, **given})


def _factor(by: float) -> float | int:
    """A whole number as such: integer tensors stay what they are."""
    return int(by) if float(by).is_integer() else by


def _words(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
