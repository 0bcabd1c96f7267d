"""Prepares cases: binds specs to their code, builds problems, calls the code under test.

A `Harness` keeps what the cases of a process share: bindings, compiled kernels, rank processes.
"""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import CompileBackend, EntryError
from tlmatrix.backend.axes import refuse_unknown_axes
from tlmatrix.backend.backends import InterpreterBackend
from tlmatrix.backend.binding import bind, execute
from tlmatrix.backend.thresholds import thresholds_of
from tlmatrix.check.running import OnDevice
from tlmatrix.distributed.entry import Executors
from tlmatrix.matrix.listed_cases import seed_from
from tlmatrix.problem.sharding import has_idle_rank, with_owners
from tlmatrix.problem.storage import changeable_inputs
from tlmatrix.processes import Fork
from tlmatrix.run.invalid_inputs import invalid_problem
from tlmatrix.run.measurements import counting
from tlmatrix.run.process_state import StateGuard
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.model.spec import has_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.backend.assembly import Assembler, Keep
    from tlmatrix.backend.binding import Binding
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.running import SeveralRanks
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Family, Problem, Tensors
    from tlmatrix.problem.model import Relation, RelationKind
    from tlmatrix.run.measurements import Measurements
    from tlmatrix.spec.model.checks import InvalidInput
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_OTHER_KERNELS = 3
"""One of this many cases on simulated ranks is called after one whose kernels may be others."""
_OTHER_OPTIONS = 3
"""Of this many cases, one is called around a call with other options, others around other data."""

_HISTORIES = 6
"""Of this many cases, one calls its problem and that with other data in an order of their own."""

_AGAIN = 64
"""Of this many cases, one checks what else only one case of a spec does."""

_LOWERED = 2
"""Of this many cases, one is called with lower thresholds of host code."""

_SAMPLED = 8
"""Of this many cases, one checks a relation that needs kernels of another compile key."""


def case_seed(case: Case, seed: int = 0) -> int:
    """The seed of a case's inputs; `seed` 0 gives the case's own, any other value other inputs."""
    seed = seed or case.run_seed
    if not seed:
        return case.seed
    return seed_from(f"{seed}:{case.key}")


def is_bitwise(spec: Spec, names: Mapping[str, Any]) -> bool:
    """Whether runs must agree bitwise: as the first matching rule says, else True."""
    for rule in spec.determinism:
        if rule.when.evaluate(names):
            return bool(rule.mode == "bitwise")
    return True


def _sampled_relations(problem: Problem, spec: Spec, case: Case, family: Family) -> Problem:
    """A problem without most relations that need kernels of another compile key.

    Such a relation doubles the kernels of a case, each of which takes seconds to compile or to
    lower. The seed of a planned case keeps one of `_SAMPLED`; a generated case has none, because
    its kernels are not compiled ahead. The interpreter checks all of them, except in the few cases
    that it traces for another architecture, where each is a kernel that no other case needs.
    """
    mine = family.compile_key(spec, case.values)
    planned = case.origin != "fuzz"

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            keys = {family.compile_key(spec, each.values) for each in relation.problems}
            if keys <= {mine} or (
                planned and seed_from(f"{relation.name}:{case.key}") % _SAMPLED == 0
            ):
                yield relation

    return replace(problem, relations=relations)


def _is_turned(binding: Binding) -> bool:
    """Whether kernels are traced for another architecture than the first of the spec."""
    backend = binding.backend
    return isinstance(backend, InterpreterBackend) and (
        backend.target in binding.spec.architectures[1:]
    )


@dataclass
class BoundSpec:
    """A spec with its code and its problem family; `returned` are the outputs of the code."""

    binding: Binding
    family: Family
    returned: tuple[str, ...] | None = None


@dataclass
class _SharedChecks:
    """What a few cases of a spec check for all of them, in each process.

    Attributes:
        passed: the checks that a case passed.
        defaults: the defaults of options that were checked.
        first: the keys of the first cases.
        called: the keys of valid cases that were called before invalid ones.
        smallest: elements of the inputs of the smallest explained case, by cause of its finding.
    """

    passed: set[str] = field(default_factory=set)
    defaults: set[str] = field(default_factory=set)
    first: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    smallest: dict[Hashable, int] = field(default_factory=dict)

    def number_of(self, case: Case, most: int) -> int | None:
        """The number of a case among the first ones; it is added if these are fewer than `most`."""
        if case.key not in self.first and len(self.first) < most:
            self.first.append(case.key)
        return self.first.index(case.key) if case.key in self.first else None


@dataclass
class Harness:
    """Binds specs, builds problems and runs entries on one backend; caches what cases share.

    Attributes:
        backend: where kernels run.
        roots: folders, besides the spec's own, from which entries are imported.
        rank_seconds: time limit of a call on several ranks, after which they count as hung.
        keep: what the backend `compile` keeps of compiled kernels, and where.
        left_changed: findings of settings of the process that the running case changed.
    """

    backend: Backend
    roots: tuple[Path, ...] = ()
    rank_seconds: float = 120.0
    keep: Keep | None = None
    left_changed: list[Finding] = field(default_factory=list)
    _bound: dict[tuple[Path, Sequence[str], str, int | None], BoundSpec] = field(
        default_factory=dict
    )
    _shared: dict[Path, _SharedChecks] = field(default_factory=dict)
    _executors: Executors | None = None
    _traced: Spec | None = None
    _tracers: dict[str, Fork[Any, list[Any]]] = field(default_factory=dict)
    _assembler: Assembler | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """The names `arch` and `backend` in expressions of a spec."""
        return {"arch": self.backend.arch, "backend": self.backend.name}

    def bind(
        self, spec: Spec, backend: Backend | None = None, agreement: int | None = None
    ) -> BoundSpec:
        """Bind a spec to its code, once for each backend, which has the architecture of the spec.

        `agreement` is the index of the agreement whose other side `spec` is. Unknown axes are
        allowed there: the case's own side may read them.
        """
        backend = backend or self.backend
        # A search that shrinks a case makes some of the spec's checks alone; a trial of a draft
        # writes its file again, with other results.
        code = repr((backend.targeting(spec.architectures), spec.call, spec.returns))
        key = (spec.path, tuple(spec.checks), code, agreement)
        if key not in self._bound:
            from tlmatrix.problem import family_for

            make_importable(spec.path, self.roots)
            binding = bind(spec, backend, roots=self.roots)
            family = family_for(spec)
            if agreement is None:
                refuse_unknown_axes(binding, family)
            self._bound[key] = BoundSpec(binding, family)
        return self._bound[key]

    def bind_case(self, spec: Spec, case: Case) -> BoundSpec:
        """Bind a spec to its code for a case, whose seed selects one of several architectures."""
        backend = self.backend
        if len(spec.architectures) > 1 and isinstance(backend, InterpreterBackend):
            backend = replace(backend, turn=case.seed)
        return self.bind(spec, backend)

    def problem(self, bound: BoundSpec, spec: Spec, case: Case, seed: int) -> Problem:
        """Build the problem of a case, with the metamorphic relations that its spec adds."""
        from tlmatrix.problem.relations.calls import FIRST, SAMPLED, with_other_layouts
        from tlmatrix.run.other_calls import many_ranks

        problem = self._problem(bound, spec, case, seed)
        simulated = isinstance(self.backend, InterpreterBackend)
        if case.origin == "invalid" or not simulated or many_ranks(spec, case):
            # On a GPU another layout would take kernels of its own, and could end the process.
            return problem
        empty = not any(tensor.numel() for tensor in problem.inputs.values())
        number = self.shared_checks(spec).number_of(case, 0 if empty else FIRST)
        if number is None and case.seed // 7 % SAMPLED:
            return problem
        return with_other_layouts(spec, problem, case.seed, number)

    def _problem(self, bound: BoundSpec, spec: Spec, case: Case, seed: int) -> Problem:
        """The problem of a case, with all of its relations but that of memory layouts."""
        seed = case_seed(case, seed)

        def make(values: Mapping[str, Value], seed: int = seed, *, on_host: bool = True) -> Problem:
            make_on_host = getattr(bound.family, "host_problem", None) if on_host else None
            device = self.backend.device
            if make_on_host and device.type != "cpu" and self._copies_tensors(spec, case):
                made: Problem | None = make_on_host(spec, values, seed=seed, device=device)
                if made is not None:
                    return made
            return bound.family.problem(spec, values, seed=seed, device=device)

        if case.origin == "invalid":
            return invalid_problem(
                spec, case, invalid_input_of(spec, case), make, bound.binding.parameters
            )
        from tlmatrix.problem.relations.calls import with_given_output, with_side_stream
        from tlmatrix.problem.relations.propagation import with_propagation
        from tlmatrix.problem.relations.user import with_user_relations
        from tlmatrix.run.other_calls import other_options, with_default_values

        problem = make(case.values)
        problem = replace(
            problem,
            defaults=bound.binding.default_options(problem),
            other_options=partial(other_options, spec, case, bound.family, problem, make),
        )
        problem = with_user_relations(spec, bound.family, problem, seed, self.environment)
        problem = with_propagation(spec, problem, seed)
        if self.backend.name == "interpreter":
            problem = self._with_thresholds(spec, case, problem)
        output = bound.binding.optional_output(spec.results or problem.returns)
        if output is not None and not has_ranks(spec):
            problem = with_given_output(problem, output)
        if self.backend.device.type == "cuda" and not has_ranks(spec):
            problem = with_side_stream(problem)
        if case.origin != "fuzz":
            problem = self._with_checks_of_a_spec(bound, spec, case, problem)
        if case.origin != "fuzz" and not has_ranks(spec):
            done = self.shared_checks(spec).defaults
            problem = with_default_values(spec, case, problem, make, done)
        if spec.compile_axes and (self.backend.compiles or _is_turned(bound.binding)):
            problem = _sampled_relations(problem, spec, case, bound.family)
        from tlmatrix.run.other_calls import (
            many_ranks,
            with_cuda_graph,
            with_many_calls,
            with_one_relation,
            with_other_options,
        )

        on_host = any(each.device.type == "cpu" for each in problem.inputs.values())

        def make_other(values: Mapping[str, Value]) -> Problem:
            return with_owners(spec, make(values, seed + 2, on_host=on_host))

        another = partial(self._another_case, bound, spec, case, problem, make_other)
        if not has_ranks(spec):
            if case.seed % _OTHER_OPTIONS == 0:
                return with_other_options(problem, another, stale=lambda: make_other(case.values))
            return self._with_calls_around(bound, spec, case, problem, another)
        problem = with_owners(spec, problem)
        if spec.context is not None:
            problem = with_other_options(problem, another, stale=None)
        simulated = self.backend.name == "interpreter"
        if simulated:
            problem = with_many_calls(spec, case, problem)
        problem = with_cuda_graph(spec, case, problem, self.backend)
        if simulated and many_ranks(spec, case):
            return with_one_relation(problem, case.seed)
        return problem

    def shared_checks(self, spec: Spec) -> _SharedChecks:
        """What the cases of a spec have checked for each other."""
        return self._shared.setdefault(spec.path, _SharedChecks())

    def _with_checks_of_a_spec(
        self, bound: BoundSpec, spec: Spec, case: Case, problem: Problem
    ) -> Problem:
        """Add the relations that one case of a spec checks for all, in each process, and few more.

        Until a case passes, the next ones check it, too.
        """
        from tlmatrix.problem.relations.calls import (
            with_changed_inputs,
            with_second_derivative,
            with_two_streams,
        )

        done = self.shared_checks(spec).passed

        def due(check: str) -> bool:
            return check not in done or case.seed % _AGAIN == 0

        def passed(check: str) -> Callable[[], None]:
            return lambda: done.add(check)

        differentiable = bound.binding.differentiable and "gradients" in spec.checks
        if spec.strict_autograd and differentiable and problem.cotangents and due("second"):
            problem = with_second_derivative(problem, passed("second"))
        if differentiable and problem.cotangents and "changed" not in done:
            names = changeable_inputs(problem, integers=spec.strict_autograd)
            problem = with_changed_inputs(problem, names, passed("changed"))
        if self.backend.simulates_streams and not has_ranks(spec) and due("streams"):
            problem = with_two_streams(problem, passed("streams"))
        return problem

    def _with_thresholds(self, spec: Spec, case: Case, problem: Problem) -> Problem:
        """Make a call with lower thresholds of host code: in some cases, and if ranks are idle."""
        from tlmatrix.problem.relations.calls import with_thresholds

        names = [] if spec.entry is None else [each.name for each in thresholds_of(spec.entry)]
        idle = bool(names) and has_ranks(spec) and has_idle_rank(spec, problem)
        if not names or (case.seed // 11 % _LOWERED and not idle):
            return problem
        return with_thresholds(problem, names, case.seed // 5, all_ways=idle)

    def _another_case(
        self,
        bound: BoundSpec,
        spec: Spec,
        case: Case,
        problem: Problem,
        make: Callable[[Mapping[str, Value]], Problem],
    ) -> tuple[str, Problem] | None:
        """Another case of the spec; where kernels are few, one with the same kernels.

        That is where each kernel takes seconds, in cases traced for another architecture than the
        first, and mostly on simulated ranks.
        """
        from tlmatrix.run.other_calls import another_case

        key = partial(bound.family.compile_key, spec)
        mostly = has_ranks(spec) and case.seed // 5 % _OTHER_KERNELS != 0
        few = self.backend.compiles or mostly or _is_turned(bound.binding)
        only = key(case.values) if few else None
        return another_case(
            spec,
            case,
            problem,
            make,
            self.environment,
            allowed=lambda values: only is None or key(values) == only,
            transposed=only is None or (mostly and not self.backend.compiles),
        )

    def _with_calls_around(
        self,
        bound: BoundSpec,
        spec: Spec,
        case: Case,
        problem: Problem,
        another: Callable[[], tuple[str, Problem] | None],
    ) -> Problem:
        """Make the call with other data between two passes, or both in an order of their own."""
        from tlmatrix.run.other_calls import with_call_between, with_history

        if case.seed % _HISTORIES != _HISTORIES - 1:
            return with_call_between(problem, case.seed)
        differentiable = bound.binding.differentiable and "gradients" in spec.checks
        return with_history(
            problem,
            case.seed,
            another,
            backward=differentiable and bool(problem.cotangents),
            exact=is_bitwise(spec, {**problem.names, **self.environment}),
        )

    def _copies_tensors(self, spec: Spec, case: Case) -> bool:
        """Whether an entry may get copies of a problem's tensors on its device.

        Invalid inputs may be tensors of another device, and ranks have problems of their own.
        """
        return case.origin != "invalid" and not has_ranks(spec)

    def entry(
        self, binding: Binding, measurements: Measurements | None = None
    ) -> Callable[[Problem], Tensors]:
        """The function that runs the code under test on a problem; each call is another run.

        `measurements` gets the time and coverage of the calls.
        """
        runs = itertools.count()

        @contextmanager
        def measured() -> Iterator[None]:
            with StateGuard("the entry", self.left_changed):
                if measurements is None:
                    yield
                    return
                with measurements.phase("entry"), counting(measurements.recorder):
                    yield

        if has_ranks(binding.spec):
            on_ranks: SeveralRanks = self._ranks().entry(binding, lambda: next(runs), measured)
            return on_ranks

        def run_entry(problem: Problem) -> Tensors:
            process = os.getpid()
            try:
                with measured():
                    return execute(binding, problem, run_index=next(runs))
            finally:
                if os.getpid() != process:
                    os._exit(70)  # a child that the entry forked would run the remaining cases

        return OnDevice(run_entry, binding.backend.device)

    def returned(self, bound: BoundSpec, spec: Spec, case: Case, seed: int) -> tuple[str, ...]:
        """Names of the outputs that the code returns; one run finds out if the spec names none."""
        if spec.results:
            return spec.results
        if bound.returned is None:
            # On a problem of its own: an entry may write to its inputs.
            problem = self.problem(bound, spec, case, seed)
            try:
                bound.returned = tuple(self.entry(bound.binding)(problem))
            except EntryError as error:
                if not hasattr(error.error, "reports"):
                    raise
                # An `InterpreterError`: the checks run the entry with sanitizers, which report it.
                return tuple(problem.outputs)
        return bound.returned

    def assembler(self) -> Assembler:
        """The assembler of kernels that are compiled and not run."""
        from tlmatrix.backend.assembly import Assembler

        if self._assembler is None:
            self._assembler = Assembler()
        return self._assembler

    def tracer(self, spec: Spec, arch: str) -> Fork[Any, list[Any]]:
        """A process that calls functions with (this harness, the spec, a backend that traces).

        It traces for `arch`. Those of the spec before it end: each has memory of its own.
        """
        if self._traced is not spec:
            self._end_tracers()
            self._traced = spec
        if arch not in self._tracers:
            backend = CompileBackend(requested=(arch,), target=arch)
            self.bind(spec, backend)  # here, so that a fork in place of another finds it
            self._tracers[arch] = Fork(lambda work: work(self, spec, backend))
        return self._tracers[arch]

    def _end_tracers(self) -> None:
        for each in self._tracers.values():
            each.close()
        self._tracers.clear()
        self._traced = None

    def end_case(self) -> None:
        """Free what belongs to the case that ran."""
        self.left_changed.clear()
        if self._executors is not None:
            self._executors.end_case()

    def close(self) -> None:
        """End the processes that were started."""
        self._end_tracers()
        if self._assembler is not None:
            self._assembler.close()
            self._assembler = None
        if self._executors is not None:
            self._executors.close()
            self._executors = None

    def _ranks(self) -> Executors:
        """The executors of entries on several ranks."""
        if self._executors is None:
            self._executors = Executors(self.roots, self.rank_seconds)
        return self._executors


def invalid_input_of(spec: Spec, case: Case) -> InvalidInput:
    """The invalid input that a case was made from."""
    from tlmatrix.matrix import invalid_cases

    return next(item.invalid for item in invalid_cases(spec) if item.case == case)
