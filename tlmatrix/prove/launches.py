"""Observes the kernels that cases launch, and the arguments of each launch.

Facts need launches of the same kernels with other sizes: variants of a case have them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.backend import CompileBackend
from tlmatrix.backend.binding import execute
from tlmatrix.check.guards import guarded
from tlmatrix.check.memory import poison_mask
from tlmatrix.distributed.entry import trace
from tlmatrix.interpreter import TracedKernel
from tlmatrix.interpreter.analysis.accesses import constants_of
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.problem import family_for
from tlmatrix.problem.distributions import seeded_random
from tlmatrix.run.harness import Harness, is_bitwise
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import has_ranks
from tlmatrix.spec.values import canonical, numbers_in

from .facts import Observation

if TYPE_CHECKING:
    from tlmatrix.interpreter import InterpretedKernel
    from tlmatrix.interpreter.ir import nodes as ir
    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_RANK_SECONDS = 60.0
_ATTEMPTS = 40
_PART = 0.4
"""Of the axes that attempts change once all at once do not satisfy the constraints."""
_FEW = 3
"""Where an axis lists fewer values, neighbors of the case's own are used as well."""
_STEPS = (-1, 1, 2)
_LARGEST_TABLE = 1 << 16
"""Elements of an integer tensor of which the values are kept."""


@dataclass
class KernelUse:
    """A kernel, and how cases launch it.

    Attributes:
        name: the kernel's name.
        text: its IR as TVM saves it, by which kernels are told apart.
        case: the first case that launched it.
        architectures: those for which tracing gives it, with the first case that launched it there.
        observed: its launches.
        alike: the launches of all kernels of this name and signature.
        bits: whether equal calls must give equal bits.
    """

    name: str
    text: str
    case: str
    architectures: dict[str, str]
    observed: list[Observation] = field(default_factory=list)
    alike: list[Observation] = field(default_factory=list)
    bits: bool = True

    def kernel(self) -> ir.Kernel:
        """Its IR."""
        found: ir.Kernel = read_all(self.text)
        return found


class Observer:
    """Notes the kernels that code launches: `on_launch` is that of `interpreter.traced`.

    Attributes:
        case: the case that runs.
        arch: the architecture that its kernels are traced for.
        bits: whether its equal calls must give equal bits.
        declared: the integer tensors of its problem.
    """

    def __init__(self, arch: str) -> None:
        """Note kernels that are traced for an architecture."""
        self.case, self.arch, self.bits = "", arch, True
        self.declared: list[torch.Tensor] = []
        self._texts: dict[int, tuple[Any, str, frozenset[str]]] = {}
        self._unmade: list[torch.Tensor] = []
        """Integer tensors that a kernel writes which did not run: they do not hold its values."""
        self._found: dict[str, KernelUse] = {}

    def on_launch(
        self,
        kernel: TracedKernel | InterpretedKernel,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> None:
        """Note a launch."""
        if id(kernel) not in self._texts:
            text = saved(kernel.prim_func)
            ours: ir.Kernel = read_all(text)
            constants = constants_of(ours)
            names = {b.name for b in ours.buffer_map.values() if b.data not in constants}
            self._texts[id(kernel)] = kernel, text, frozenset(names)
        text, written = self._texts[id(kernel)][1:]
        observation = self._observation(kernel, values, sizes)
        if isinstance(kernel, TracedKernel):
            own = (value for name, value in values.items() if name in written)
            self._unmade += [v for v in own if isinstance(v, torch.Tensor) and _is_whole(v)]
        new = KernelUse(kernel.name, text, self.case, {}, bits=False)
        use = self._found.setdefault(text, new)
        use.architectures.setdefault(self.arch, self.case)
        use.observed.append(observation)
        use.bits |= self.bits

    def prim_func(self, use: KernelUse) -> Any:  # noqa: ANN401 - of TVM
        """The kernel as it was traced: its saved text lacks layouts of global memory."""
        return next(k.prim_func for k, text, _ in self._texts.values() if text == use.text)

    def start(self, case: str, arch: str) -> None:
        """Another case runs, with tensors of its own."""
        self.case, self.arch, self.bits = case, arch, True
        self._unmade.clear()

    def _observation(
        self,
        kernel: TracedKernel | InterpretedKernel,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> Observation:
        func = kernel.prim_func
        names = [str(func.buffer_map.get(p, p).name) for p in func.params]
        unwritten = {name for k, name in enumerate(names) if k in kernel.out_idx}
        tables, own = {}, set()
        tensors = {name: v.detach() for name, v in values.items() if isinstance(v, torch.Tensor)}
        storages = {each.untyped_storage().data_ptr() for each in self._unmade}
        for name, value in tensors.items():
            if _is_whole(value) and value.untyped_storage().data_ptr() in storages:
                continue
            if _is_table(value):
                tables[name] = value.cpu().numpy().astype(np.int64)
                alike = (t for t in self.declared if value.shape == t.shape)
                own |= {name} if any(bool((value == t).all()) for t in alike) else set()
            elif (mask := poison_mask(value)) is not None and mask.any():
                unwritten.add(name)
        numbers = {name: int(value) for name, value in values.items() if isinstance(value, int)}
        return Observation(
            dict(sizes) | numbers, tables, frozenset(own), frozenset(unwritten), tuple(names)
        )

    def uses(self) -> list[KernelUse]:
        """The kernels so far."""
        pooled: dict[tuple[str, tuple[str, ...]], list[Observation]] = defaultdict(list)
        for use in self._found.values():
            pooled[use.name, use.observed[0].parameters] += use.observed
        for use in self._found.values():
            use.alike = pooled[use.name, use.observed[0].parameters]
        return list(self._found.values())


def observe(
    spec: Spec, cases: Iterable[Case], architectures: Sequence[str], *, roots: Sequence[Path] = ()
) -> tuple[list[KernelUse], list[str]]:
    """The kernels that the host code of cases launches, for each architecture; none of them runs.

    Also returns the cases whose host code raised, with the exception.

    Raises:
        SpecError: the spec does not match its code.
    """
    observer = Observer("")
    failed: list[str] = []
    for arch, case in product(architectures, list(cases)):
        if arch != observer.arch:
            backend = CompileBackend(requested=(arch,), target=arch, on_launch=observer.on_launch)
            harness = Harness(backend, tuple(roots), _RANK_SECONDS, None)
        observer.start(case.id, arch)
        try:
            bound = harness.bind(spec, backend)
            problem = harness.problem(bound, spec, case, 0)
            observer.bits = is_bitwise(spec, {**problem.names, **harness.environment})
            observer.declared = [t for t in problem.inputs.values() if _is_table(t)]
            if has_ranks(spec):
                trace(bound.binding, problem)
            else:
                with guarded(problem) as (own, _):
                    execute(bound.binding, own)
        except SpecError:
            raise
        except Exception as error:  # noqa: BLE001 - of the code under test; `run` reports it
            failed.append(f"{case.id} for {arch}: {type(error).__name__}: {error}")
    return observer.uses(), failed


def _is_table(tensor: torch.Tensor) -> bool:
    return _is_whole(tensor) and tensor.numel() <= _LARGEST_TABLE


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor are integers."""
    whole = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    return whole and tensor.dtype != torch.bool


# Cases with other sizes ---------------------------------------------------------------------------


def asked_cases(cases: Iterable[Case]) -> list[Case]:
    """Those whose kernels are proven: without invalid inputs, and without generated ones."""
    return [case for case in cases if case.origin not in ("invalid", "fuzz")]


def variants(spec: Spec, case: Case, count: int) -> Iterator[Case]:
    """Other cases with the kernels of `case`: other values of axes that no kernel is compiled for.

    First each axis alone takes its largest value, so that sizes that are equal by chance differ;
    then `count` cases with other values of several axes. They are the same for the same case.
    """
    offered = free_values(spec, case)
    pick = seeded_random(case.seed ^ 0x9E37)
    seen = {case.key}
    for attempt in range(len(offered) + _ATTEMPTS if offered else 0):
        if attempt < len(offered):
            axis = list(offered)[attempt]
            values: dict[str, Value] = {axis: max(offered[axis], key=_size)}
        else:
            # Of some axes, for constraints may tie axes to each other.
            part = 1 if attempt < len(offered) + count else _PART
            values = {a: pick.choice(each) for a, each in offered.items() if pick.random() < part}
        found = replace(case, values={**case.values, **values}, origin="tier")
        if found.key in seen or not allowed(spec, found.values):
            continue
        seen.add(found.key)
        count -= attempt >= len(offered)
        yield found
        if count <= 0:
            return


def _size(value: Value) -> float:
    """How large a value is: of lists the sum."""
    return sum(number for number in numbers_in(value) if isinstance(number, int))


def free_values(spec: Spec, case: Case) -> dict[str, list[Value]]:
    """The values of each axis with which a case has the same kernels; of all axes if none has.

    A spec that does not say for which axes kernels are compiled may have kernels with symbolic
    dims all the same.
    """
    key = family_for(spec).compile_key
    found: dict[str, list[Value]] = {}
    free: dict[str, list[Value]] = {}
    for axis, own in case.values.items():
        values: list[Value] = [own, *spec.axes.get(axis, ())]
        if type(own) is int and len(values) < _FEW:
            values += [own + step for step in _STEPS if own + step > 0]
        found[axis] = list({canonical(value): value for value in values}.values())
        free[axis] = []
        for value in found[axis]:
            with suppress(ExpressionError, SpecError, ValueError):
                if key(spec, {**case.values, axis: value}) == key(spec, case.values):
                    free[axis].append(value)
    several = ({a: v for a, v in each.items() if len(v) > 1} for each in (free, found))
    return next(several) or next(several)


def allowed(spec: Spec, values: Mapping[str, Value]) -> bool:
    """Whether a spec has a case of these values."""
    try:
        return spec.allows(values)
    except ExpressionError:
        return False
