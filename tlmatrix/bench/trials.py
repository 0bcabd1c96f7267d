"""Implementations of a case: which there are, whether they work, how long their passes take.

`engine` tries and times them here on one GPU, and `ranks` on each rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import EntryError
from tlmatrix.bench.candidates import NotApplicableError, prepare_candidate
from tlmatrix.bench.results import Implementation, State
from tlmatrix.bench.timing import interleaved
from tlmatrix.run.faults import fault_finding
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.backend import Backend
    from tlmatrix.bench.candidates import Candidate, Run
    from tlmatrix.bench.timing import Clock, Samples, Schedule
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

ENTRY = "entry"
"""The name of the spec's own implementation in tables and files."""


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
