"""Implementations of a case: which there are, whether they work, how long their passes take.

`engine` tries and times them on one GPU, or on each rank: one call for the forward, one for the
backward.

All implementations get the same tensors. Arguments are resolved before the clock starts.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch

from tlmatrix.backend import EntryError
from tlmatrix.backend.binding import bind
from tlmatrix.backend.signature import parameters_of
from tlmatrix.bench.results import Implementation, State
from tlmatrix.bench.timing import interleaved
from tlmatrix.run.outcome import fault_finding
from tlmatrix.spec.importing import load
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import label
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from tlmatrix.backend import Backend
    from tlmatrix.backend.binding import PreparedCall
    from tlmatrix.bench.timing import Call, Clock, Samples, Schedule
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

Named = Mapping[str, torch.Tensor]
ENTRY = "entry"
"""The name of the spec's own implementation in tables and files."""
_ROUNDOFFS = 32
"""Tolerance of the root mean square error, in roundoffs of the output's dtype."""
_ROW_FACTOR = 8
"""Factor of the tolerance of a single row."""
_MIN_TOLERANCE = 1e-3
"""Least tolerance: some implementations convert float32 operands to TF32."""


class NotApplicableError(Exception):
    """An implementation does not support a case; the message is the reason, for the table."""


@dataclass(frozen=True)
class Run:
    """An implementation: `ready(inputs)` returns a call, `named` names its outputs."""

    ready: Callable[[Named], Call]
    named: Callable[[object], Named]

    @classmethod
    def of(cls, function: Callable[[Named], object], returns: tuple[str, ...]) -> Run:
        """Wrap a function of the inputs; `returns` are the names of its results, in order."""

        def named(result: object) -> Named:
            found = result if isinstance(result, tuple | list) else (result,)
            return dict(zip(returns, found, strict=False))

        return cls(lambda inputs: lambda: function(inputs), named)


@dataclass(frozen=True)
class Candidate:
    """Calls to time, and their results from one trial."""

    forward: Call
    backward: Call | None
    results: Named


def prepare_candidate(run: Run, problem: Problem) -> Candidate:
    """Call an implementation once, and keep its autograd graph for the backward.

    Inputs require gradients if the problem has some, so that the forward saves tensors as in
    training.
    """
    wanted = problem.gradient_of if problem.cotangents else {}
    leaves = {
        name: tensor.detach().requires_grad_(name in wanted.values())
        for name, tensor in problem.inputs.items()
    }
    forward = run.ready(leaves)
    outputs = run.named(forward())
    if not wanted:
        return Candidate(forward, None, outputs)
    missing = [name for name in problem.cotangents if name not in outputs]
    if missing:
        raise NotApplicableError(f"returns no {missing[0]}")
    of = [outputs[name] for name in problem.cotangents]
    if not all(tensor.requires_grad for tensor in of):
        return Candidate(forward, None, outputs)
    inputs = [leaves[name] for name in wanted.values()]
    cotangents = list(problem.cotangents.values())

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(of, inputs, cotangents, retain_graph=True)

    gradients = dict(zip(wanted, backward(), strict=True))
    detached = {name: tensor.detach() for name, tensor in outputs.items()}
    return Candidate(forward, backward, {**detached, **gradients})


@dataclass(frozen=True)
class Variant:
    """An implementation to time.

    Attributes:
        name: its name in tables and files.
        target: a function `package.module:name` or the name of one of PyTorch's; None: the entry.
        config: the configuration of a sweep; {} for others.
    """

    name: str
    target: str | None = None
    config: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """The implementations of a case, and their samples by pass.

    `before` are the clock rates before the samples.
    """

    implementations: Sequence[Implementation]
    samples: Mapping[str, Mapping[str, Samples]] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)


def variants_of(spec: Spec, baselines: Sequence[str] | None, *, sweep: bool) -> list[Variant]:
    """The entry, its baselines, and with `sweep` every combination of the spec's `configs`.

    `baselines` replace those of the spec.
    """
    found = {ENTRY: Variant(ENTRY)}
    if baselines is None:
        baselines = spec.bench.baselines if spec.bench is not None else ()
    for target in baselines:
        short = target.rpartition(":")[2]
        name = target if short in found else short
        found[name] = Variant(name, target)
    tried = spec.bench.configs if sweep and spec.bench is not None else {}
    for chosen in product(*tried.values()) if tried else ():
        config = dict(zip(tried, chosen, strict=True))
        name = ",".join(f"{key}={label(value)}" for key, value in config.items())
        found[name] = Variant(name, None, config)
    return list(found.values())


def try_variants(
    variants: Sequence[Variant],
    make: Callable[[Variant], Run],
    problem: Problem,
    backend: Backend,
    mismatch: Callable[[str, Candidate], str | None],
) -> Iterator[tuple[Candidate | None, Implementation]]:
    """Call each implementation once; those without a candidate do not work.

    `mismatch` says what is wrong with the results of an implementation, given with its name.

    Raises:
        SpecError: the code does not exist, or does not take its arguments.
    """
    for variant in variants:
        found, state, reason = None, State.TIMED, ""
        try:
            candidate = prepare_candidate(make(variant), problem)
            backend.synchronize()
            wrong = mismatch(variant.name, candidate)
        except (NotApplicableError, NotImplementedError) as error:
            state = State.NOT_APPLICABLE
            reason = _first_sentence(str(error)) or type(error).__name__
        except SpecError:
            raise
        except Exception as error:  # noqa: BLE001 - any error is reported in the table
            state, reason = State.FAILED, summarize_error(error, backend)
        else:
            if wrong is None:
                found = candidate
            else:
                state, reason = State.WRONG, wrong
        yield found, Implementation(variant.name, state, reason, variant.config)


def time_passes(
    ready: Mapping[str, Candidate],
    clock: Clock,
    schedule: Schedule,
    agree: Callable[[float], float] | None = None,
) -> Iterator[tuple[str, dict[str, Samples]]]:
    """The samples of each pass, by implementation; `agree` is that of `interleaved`."""
    for name in ("forward", "backward"):
        calls = {
            variant: call
            for variant, each in ready.items()
            if (call := each.forward if name == "forward" else each.backward) is not None
        }
        if calls:
            yield name, interleaved(calls, clock, schedule, agree)


def summarize_error(error: Exception, backend: Backend) -> str:
    """Summarize the exception of an implementation in one line, for a table."""
    raised = error.error if isinstance(error, EntryError) else error
    finding = fault_finding(raised, backend, "entry", 0)
    if finding is not None:
        return finding.summary
    first = _first_sentence(str(raised))
    return f"{type(raised).__name__}: {first}" if first else type(raised).__name__


def _first_sentence(text: str) -> str:
    return text.strip().partition("\n")[0].partition(". ")[0]


def entry_run(
    spec: Spec,
    problem: Problem,
    backend: Backend,
    *,
    roots: tuple[Path, ...] = (),
    target: str | None = None,
    config: Mapping[str, Value] | None = None,
) -> Run:
    """Return the entry or factory of a spec, or `target`, called with the entry's arguments.

    `config` are keyword arguments of the entry, or of the factory.

    Raises:
        SpecError: the code does not exist, or does not take these arguments.
    """
    if target is not None:
        call = () if spec.factory is not None else spec.call
        spec = spec_of_function(spec, target, call=call, returns=())
    elif config and spec.factory is not None:
        made = _arguments(spec, load(spec, ("factory",), spec.factory), config)
        literal = {name: repr(v) if isinstance(v, str) else v for name, v in made.items()}
        spec = spec.model_copy(update={"factory_args": {**spec.factory_args, **literal}})
    binding = bind(spec, backend, roots=roots)
    if config and spec.entry is not None:
        made = _arguments(spec, load(spec, ("entry",), spec.entry), config)
        problem = replace(problem, names={**problem.names, **made})

    def ready(inputs: Named) -> PreparedCall:
        return binding.callee.prepare({**problem.names, **problem.inputs, **inputs}, problem)

    # A factory's kernels write to output buffers, which are allocated here.
    first = ready({})
    if not binding.differentiable:
        return Run(lambda _inputs: first, first.named)
    return Run(ready, first.named)


def spec_of_function(spec: Spec, function: str, **update: object) -> Spec:
    """The spec with the entry `package.module:name`, and with other keys updated."""
    cleared: dict[str, object] = {"factory": None, "factory_args": {}, "constructor_args": {}}
    return spec.model_copy(update={"entry": function, **cleared, **update})


def _arguments(spec: Spec, function: object, config: Mapping[str, Value]) -> dict[str, object]:
    """Convert a configuration to arguments: mappings become dataclasses if the parameter is one."""
    parameters = parameters_of(function) if callable(function) else None
    if parameters is None:
        return dict(config)
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    made: dict[str, object] = {}
    for name, value in config.items():
        if name not in parameters and not anything:
            target = spec.entry or spec.factory
            words = f"bench: {target!r} takes no {name!r}{suggestion(name, parameters, 'It takes')}"
            raise SpecError([spec.issue(("bench", "configs", name), words)])
        kind = _dataclass_of(parameters.get(name), function)
        made[name] = value
        if kind is not None and isinstance(value, Mapping):
            known = [each.name for each in fields(kind)]
            for key in value:
                if key not in known:
                    words = f"bench: {name} has no {key!r}{suggestion(key, known, 'It has')}"
                    raise SpecError([spec.issue(("bench", "configs", name), words)])
            made[name] = kind(**value)
    return made


def _dataclass_of(parameter: inspect.Parameter | None, function: object) -> type[Any] | None:
    """The dataclass of a parameter's annotation or default."""
    if parameter is None:
        return None
    annotation = parameter.annotation
    if isinstance(annotation, str):
        module = sys.modules.get(str(getattr(function, "__module__", "")))
        annotation = getattr(module, annotation.partition(" |")[0], None)
    for kind in (*get_args(annotation), annotation, type(parameter.default)):
        if isinstance(kind, type) and is_dataclass(kind):
            return kind
    return None


def find_mismatch(problem: Problem, expected: Named, results: Named) -> str | None:
    """Describe how results differ from the expected ones; None if they are close enough.

    This is a coarse check against timing wrong results; `tlmatrix run` has the precise one.
    """
    for name, tensor in results.items():
        if name not in expected or name not in problem.outputs:
            continue
        got, want = tensor.double(), expected[name].double()
        if got.shape != want.shape:
            return f"{name} has shape {list(got.shape)}, not {list(want.shape)}"
        if not want.numel():
            continue
        same = (got == want) | (got.isnan() & want.isnan())
        difference = torch.where(same, 0.0, got - want)
        size = _rms(torch.where(want.isfinite(), want, 0.0))
        allowed = max(_ROUNDOFFS * problem.outputs[name].roundoff, _MIN_TOLERANCE)
        error = float(_rms(difference))
        if not error <= allowed * max(float(size), 1e-30):
            share = error / float(size) if float(size) else math.inf
            return f"{name} is off by {100 * share:.3g} % of its size"
        rows, sizes = _rms(difference, -1), _rms(torch.where(want.isfinite(), want, 0.0), -1)
        over = rows > _ROW_FACTOR * allowed * torch.maximum(sizes, size)
        if bool(over.any()):
            return f"{name} is wrong in {int(over.sum())} of {over.numel()} rows"
    return None


def _rms(tensor: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    return tensor.square().mean(dim=dim).sqrt()
