"""Other ways to the same results: what `agree` of a spec names, run on the inputs of the case.

The other side is a spec of its own, like the first but for what differs, so that it is bound and
its problem made as any other; then its inputs must be the same bits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import (
    ArchitectureError,
    BackendUnavailableError,
    EntryError,
    backend_named,
)
from tlmatrix.interpreter import Unsupported
from tlmatrix.problem import Pair, Relation, override
from tlmatrix.spec.importing import refuse
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import torch

    from tlmatrix.backend import Backend, Binding
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Family, Problem, RelationKind, Tensors
    from tlmatrix.spec.models import Agreement, Spec
    from tlmatrix.spec.values import Value

__all__ = ["Workplace", "with_agreements"]


@dataclass(frozen=True)
class Workplace:
    """Where a case runs, and how the other side is bound there.

    `bind` ties a spec to its code on a backend (kept by the agreement's number), `execution` gives
    what runs such code, and what runs inside `phase` is counted as time of the other side.
    """

    backend: Backend
    seed: int
    bind: Callable[[Spec, Backend, int], tuple[Binding, Family]]
    execution: Callable[[Binding], Callable[[Problem], Tensors]]
    phase: Callable[[], AbstractContextManager[None]]


def with_agreements(
    spec: Spec, case: Case, problem: Problem, family: Family, place: Workplace
) -> Problem:
    """The problem with the agreements that its spec names, as relations.

    Raises SpecError, when one is looked at, where the other side does not take the same inputs.
    """
    if not spec.agree:
        return problem

    def relations(kind: RelationKind) -> Iterator[Relation]:
        yield from problem.relations(kind)
        if kind != "agreement":
            return
        names = {**case.values, "arch": place.backend.arch, "backend": place.backend.name}
        for number, said in enumerate(spec.agree):
            if said.when is None or said.when.evaluate(names):
                other = _Other.of(spec, case, problem, family, place, number)
                if other is not None:
                    yield other.relation()

    return replace(problem, relations=relations)


@dataclass(frozen=True)
class _Other:
    """The other side of one agreement, for one case."""

    spec: Spec
    problem: Problem
    place: Workplace
    number: int
    said: Agreement
    other: Spec
    values: Mapping[str, Value]
    arguments: Mapping[str, Value]
    """Arguments of the entry that are no axes."""
    backend: Backend
    words: tuple[str, str]
    """What the other side is, and this one."""

    @classmethod
    def of(
        cls,
        spec: Spec,
        case: Case,
        problem: Problem,
        family: Family,
        place: Workplace,
        number: int,
    ) -> _Other | None:
        """The other side, if this case has one."""
        said = spec.agree[number]
        given = dict(said.set or {})
        if said.axis is not None:
            value = _another(spec, case, family, said.axis, given)
            if value is None:
                return None
            given[said.axis] = value[0]
        axes = {name: value for name, value in given.items() if name in case.values}
        values = {**case.values, **axes}
        arguments = {name: value for name, value in given.items() if name not in axes}
        backend = _backend(said, place.backend)
        same = canonical(values) == canonical(dict(case.values)) and not arguments
        if backend is None or (same and not (said.compile or said.entry or said.backend)):
            return None
        if not all(rule.expr.evaluate(values) for rule in spec.where):
            return None
        changes: dict[str, Any] = {}
        if said.entry is not None:
            changes |= {"entry": said.entry, "factory": None, "compile": {}, "constructor": {}}
            if spec.factory is not None:
                changes["call"] = ()
        if said.compile:
            changes["compile"] = {**spec.compile, **said.compile}
        words = _words(spec, case, said, given, place.backend)
        other = spec.model_copy(update=changes)
        return cls(spec, problem, place, number, said, other, values, arguments, backend, words)

    def relation(self) -> Relation:
        """What must hold: the other side's results are this one's, within the allowance of both."""
        return Relation(
            self.words[0],
            "agreement",
            sides=self._sides,
            exact=self.said.exact,
            because=self.said.because,
            words=self.words[1],
        )

    def _sides(self, mine: Tensors, _execute: Callable[[Problem], Tensors]) -> Pair | None:
        try:
            with self.place.phase():
                binding, family = self.place.bind(self.other, self.backend, self.number)
                results = self.place.execution(binding)(self._problem(family))
        except ArchitectureError:
            return None
        except EntryError as error:
            if isinstance(error.error, Unsupported):
                return None
            raise
        common = {name: tensor for name, tensor in mine.items() if name in results}
        got = {name: results[name].to(tensor.device) for name, tensor in common.items()}
        if not got:
            raise self._wrong(f"{self.words[0]} gives none of {', '.join(mine)}")
        return Pair(common, got)

    def _problem(self, family: Family) -> Problem:
        """The other side's problem, whose inputs are this one's."""
        made = family.problem(
            self.other, self.values, seed=self.place.seed, device=self.backend.device
        )
        for name, tensor in self.problem.inputs.items():
            if name not in made.inputs or not _same_bits(tensor, made.inputs[name]):
                raise self._wrong(f"with {self.words[0]} the input {name!r} is another one")
        known = {name: each for name, each in self.arguments.items() if _base(name) in made.names}
        # Others are arguments that the problem knows nothing of, as the stages of a pipeline.
        return override(replace(made, names={**self.arguments, **made.names}), known)

    def _wrong(self, message: str) -> Exception:
        return refuse(self.spec, ("agree", self.number), message)


def _another(
    spec: Spec, case: Case, family: Family, axis: str, given: Mapping[str, Value]
) -> tuple[Value] | None:
    """Another value of an axis, the same one for all cases that share kernels; None without any."""
    mine = canonical(case.values[axis])
    offered = [
        value
        for value in spec.axes[axis]
        if canonical(value) != mine
        and all(rule.expr.evaluate({**case.values, **given, axis: value}) for rule in spec.where)
    ]
    if not offered:
        return None
    pick = random.Random(family.compile_key(spec, case.values))  # noqa: S311 - reproducible
    return (pick.choice(offered),)


def _backend(said: Agreement, mine: Backend) -> Backend | None:
    """The other side's backend; None where there is none, or it is the same and should not be."""
    if said.backend is None:
        return mine
    if said.backend == mine.name:
        return None
    try:
        return backend_named(said.backend)
    except BackendUnavailableError:
        return None


def _words(
    spec: Spec, case: Case, said: Agreement, given: Mapping[str, Value], mine: Backend
) -> tuple[str, str]:
    """The two sides by what differs between them."""
    other = [f"{name}={label(value)}" for name, value in given.items()]
    own = [
        f"{name}={label(case.values[name])}" if name in case.values else f"{name} as it is"
        for name in given
    ]
    for name, value in said.compile.items():
        other.append(f"{name}={value}")
        own.append(f"{name}={spec.compile.get(name, 'its default')}")
    if said.entry is not None:
        other.append(said.entry)
        own.append(str(spec.entry or spec.factory))
    if said.backend is not None:
        other.append(f"the backend {said.backend}")
        own.append(f"the backend {mine.name}")
    return " and ".join(other), " and ".join(own)


def _base(name: str) -> str:
    """Of `k.dtype`, the tensor."""
    return name.partition(".")[0]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = [each.contiguous().cpu().view(-1).view(torch.uint8) for each in (one, other)]
    return torch.equal(*bits)
