"""Adds the agreements of a spec (`agree`): another implementation must give the same results.

The other side is a copy of the spec with the changes that the agreement names, bound and built like
any other spec. Its inputs must be bitwise equal to those of the case.
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
from tlmatrix.problem import Pair, PairRelation, with_changed_arguments
from tlmatrix.spec.importing import refuse
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from tlmatrix.backend import Backend
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Family, Problem, Relation, RelationKind, Tensors
    from tlmatrix.run.harness import Harness
    from tlmatrix.spec.model.spec import Agreement, Spec
    from tlmatrix.spec.values import Value


@dataclass(frozen=True)
class OtherSides:
    """Runs the other side of agreements.

    Attributes:
        harness: binds and runs the other side; its backend is the case's.
        seed: the seed of the case's inputs.
        phase: context manager that charges time to the other side.
    """

    harness: Harness
    seed: int
    phase: Callable[[], AbstractContextManager[None]]


def with_agreements(
    spec: Spec, case: Case, problem: Problem, family: Family, others: OtherSides
) -> Problem:
    """Add the agreements of the spec to the relations of the problem.

    Evaluating a relation raises SpecError if the other side has other inputs.
    """

    def relations(kind: RelationKind) -> Iterator[Relation]:
        yield from problem.relations(kind)
        if kind != "agreement":
            return
        names = {**case.values, **others.harness.environment}
        for number, rule in enumerate(spec.agree):
            if rule.when is None or rule.when.evaluate(names):
                other = _Other.of(spec, case, problem, family, others, number)
                if other is not None:
                    yield other.relation()

    return replace(problem, relations=relations)


def other_cases(spec: Spec, case: Case, family: Family) -> Iterator[dict[str, Value]]:
    """The axis values of the other sides of agreements that have the entry of the case."""
    names = {**case.values, "backend": "cuda", "arch": ""}
    for rule in spec.agree:
        changed = rule.entry or rule.backend or rule.factory_args
        if changed or (rule.when is not None and not rule.when.evaluate(names)):
            continue
        given = _changes(spec, case, family, rule)
        if given and given.keys() <= case.values.keys():
            yield {**case.values, **given}


@dataclass(frozen=True)
class _Other:
    """The other side of one agreement, for one case."""

    spec: Spec
    problem: Problem
    others: OtherSides
    number: int
    rule: Agreement
    other: Spec
    values: Mapping[str, Value]
    arguments: Mapping[str, Value]
    """Changed arguments of the entry that are not axes."""
    backend: Backend
    words: tuple[str, str]
    """Names of the other side and of this one, for findings."""

    @classmethod
    def of(
        cls,
        spec: Spec,
        case: Case,
        problem: Problem,
        family: Family,
        others: OtherSides,
        number: int,
    ) -> _Other | None:
        """Make the other side; None if this case has none."""
        rule = spec.agree[number]
        given = _changes(spec, case, family, rule)
        if given is None:
            return None
        axes = {name: value for name, value in given.items() if name in case.values}
        values = {**case.values, **axes}
        arguments = {name: value for name, value in given.items() if name not in axes}
        backend = _backend(rule, others.harness.backend)
        same = canonical(values) == canonical(dict(case.values)) and not arguments
        if backend is None or (same and not (rule.factory_args or rule.entry or rule.backend)):
            return None
        if not spec.allows(values):
            return None
        changes: dict[str, Any] = {}
        if rule.entry is not None:
            changes |= {
                "entry": rule.entry,
                "factory": None,
                "factory_args": {},
                "constructor_args": {},
            }
            if spec.factory is not None:
                changes["call"] = ()
        if rule.factory_args:
            changes["factory_args"] = {**spec.factory_args, **rule.factory_args}
        words = _words(spec, case, rule, given, others.harness.backend)
        other = spec.model_copy(update=changes)
        return cls(spec, problem, others, number, rule, other, values, arguments, backend, words)

    def relation(self) -> Relation:
        """The relation: both sides' results are equal within the sum of their error bounds."""
        return PairRelation(
            self.words[0],
            "agreement",
            sides=self._sides,
            exact=self.rule.exact,
            because=self.rule.because,
            words=self.words[1],
        )

    def _sides(self, mine: Tensors, _execute: Callable[[Problem], Tensors]) -> Pair | None:
        try:
            with self.others.phase():
                harness = self.others.harness
                bound = harness.bind(self.other, self.backend, self.number)
                results = harness.entry(bound.binding)(self._problem(bound.family))
        except ArchitectureError:
            return None
        except EntryError as error:
            if isinstance(error.error, Unsupported):
                return None
            raise
        common = {name: tensor for name, tensor in mine.items() if name in results}
        got = {name: results[name].to(tensor.device) for name, tensor in common.items()}
        if not got:
            raise self._spec_error(f"{self.words[0]} returns none of {', '.join(mine)}")
        return Pair(common, got)

    def _problem(self, family: Family) -> Problem:
        """Build the other side's problem and check that its inputs are this one's."""
        from tlmatrix.check.memory import same_bits

        made = family.problem(
            self.other, self.values, seed=self.others.seed, device=self.backend.device
        )
        for name, tensor in self.problem.inputs.items():
            if name not in made.inputs or not same_bits(tensor.cpu(), made.inputs[name].cpu()):
                raise self._spec_error(f"with {self.words[0]} the input {name!r} differs")
        known = {name: each for name, each in self.arguments.items() if _base(name) in made.names}
        # The rest are arguments unknown to the problem, such as the stages of a pipeline.
        return with_changed_arguments(replace(made, names={**self.arguments, **made.names}), known)

    def _spec_error(self, message: str) -> Exception:
        return refuse(self.spec, ("agree", self.number), message)


def _changes(spec: Spec, case: Case, family: Family, rule: Agreement) -> dict[str, Value] | None:
    """What an agreement sets on the other side; None if its axis has no other value.

    Cases that share kernels get the same value of the axis.
    """
    given: dict[str, Value] = dict(rule.set or {})
    if rule.axis is None:
        return given
    mine = canonical(case.values[rule.axis])
    offered = [
        value
        for value in spec.axes[rule.axis]
        if canonical(value) != mine and spec.allows({**case.values, **given, rule.axis: value})
    ]
    if not offered:
        return None
    pick = random.Random(family.compile_key(spec, case.values))  # noqa: S311 - reproducible
    return {**given, rule.axis: pick.choice(offered)}


def _backend(rule: Agreement, mine: Backend) -> Backend | None:
    """The other side's backend; None if unavailable, or if it is the case's own."""
    if rule.backend is None:
        return mine
    if rule.backend == mine.name:
        return None
    try:
        return backend_named(rule.backend)
    except BackendUnavailableError:
        return None


def _words(
    spec: Spec, case: Case, rule: Agreement, given: Mapping[str, Value], mine: Backend
) -> tuple[str, str]:
    """Name the two sides by their differences."""
    other = [f"{name}={label(value)}" for name, value in given.items()]
    own = [
        f"{name}={label(case.values[name])}" if name in case.values else f"{name} unchanged"
        for name in given
    ]
    for name, value in rule.factory_args.items():
        other.append(f"{name}={value}")
        own.append(f"{name}={spec.factory_args.get(name, 'its default')}")
    if rule.entry is not None:
        other.append(rule.entry)
        own.append(str(spec.entry or spec.factory))
    if rule.backend is not None:
        other.append(f"the backend {rule.backend}")
        own.append(f"the backend {mine.name}")
    return " and ".join(other), " and ".join(own)


def _base(name: str) -> str:
    """The tensor `k` of an argument `k.dtype`."""
    return name.partition(".")[0]
