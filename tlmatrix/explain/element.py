"""Explains one output element of a case, as lines of text.

The case runs once on the interpreter, which logs its launches; up to the call of the finding, if
that is a later one. A backward slice of the kernel that wrote the element follows
(`tlmatrix.interpreter.explain`), then a comparison with a float64 run. Then parts of the inputs are
replaced to measure on which of them the element depends, in the kernel and in the reference
(`influence`).
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.backend import EntryError
from tlmatrix.exit_codes import UsageError
from tlmatrix.interpreter import NotMadeError, Unsupported, interpret
from tlmatrix.interpreter.explain import explain_element
from tlmatrix.interpreter.explain.text import rendered_lines
from tlmatrix.run.influence import influence_lines, poison_lines
from tlmatrix.run.location import Calls, Target, locate, target_of
from tlmatrix.run.origin import precision_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.interpreter import Explanation, Session
    from tlmatrix.interpreter.explain import Launch, LaunchLog
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, TensorInfo, Tensors
    from tlmatrix.run.location import Location
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

_LABEL = 10


@dataclass(frozen=True)
class Options:
    """The options of an explanation.

    Attributes:
        tensor: the output or gradient; None for that of the first finding.
        index: the element; None for the worst one of the finding.
        buffer: explain `index` of this parameter of the last kernel that writes it instead.
        block: of several blocks that wrote the element, the one to follow.
        rank: of several ranks, the one whose kernels to follow.
        full: whether to show every iteration of every loop.
        inputs: whether to replace parts of the inputs.
        width: the number of columns.
    """

    tensor: str | None = None
    index: tuple[int, ...] | None = None
    buffer: str | None = None
    block: tuple[int, ...] | None = None
    rank: int | None = None
    full: bool = False
    inputs: bool = True
    width: int = 120


def explain_case(runner: Runner, spec: Spec, case: Case, options: Options) -> Iterator[str]:
    """The lines that explain an element of the case.

    Raises:
        UsageError: the tensor or element does not exist, or the case has no output.
    """
    if case.origin == "invalid":
        raise UsageError(f"{case.id} is an invalid input: the entry refuses it without output")
    problem, run = runner.prepared(spec, case)
    target = _target(runner, spec, case, problem, options)
    calls = Calls(run, problem, target.calls, target.kind)
    with interpret(trace=True) as session:
        try:
            problem, outputs = calls.made()
        except EntryError as error:
            raise UsageError(f"the case raises {error.error!r}: no output to explain") from error
    name, index = target.name, target.index
    yield f"{spec.name}: {case.id}"
    yield f"seed {runner.seed}"
    if target.words:
        words = f"call {len(target.calls) + 1}, of {target.kind}: {target.words}"
        yield from textwrap.wrap(words, options.width, subsequent_indent="  ")
    yield ""
    explanation: Explanation | None = None
    location: Location | None = None
    if options.buffer is not None:
        index = options.index or ()
    else:
        index = _checked_index(name, index, outputs)
        location = locate(spec, problem, outputs, name, index, options.rank)
        yield from _heading(problem, outputs, location)
        yield ""
    try:
        explanation = _explain_element(session, options, location, index)
    except NotMadeError as error:
        yield str(error)
        yield _alternatives(session, options.rank)
    except Unsupported as error:
        yield f"cannot explain: {error}"
    except ValueError as error:
        raise UsageError(str(error)) from error
    if explanation is not None:
        yield from rendered_lines(explanation, full=options.full, width=options.width)
    if location is not None:
        if explanation is not None:
            assert session.log is not None
            yield from _precision_lines(explanation, problem, location, session.log)
        yield from poison_lines(problem, explanation, location, options.width)
        if options.inputs:
            yield from influence_lines(calls, problem, explanation, location, options.width)


def _target(runner: Runner, spec: Spec, case: Case, problem: Problem, options: Options) -> Target:
    """The tensor and element of the options, or else the worst one of the case's first finding."""
    names = list(problem.outputs)
    name = options.tensor
    if name is not None and name not in names:
        raise UsageError(f"--tensor: no output {name!r}; the case has {', '.join(names)}")
    if options.index is not None:
        return Target(name or names[0], options.index)
    runner.keep_compared = True
    for finding in runner.run(spec, case).findings:
        target = target_of(finding, problem) if name in (None, finding.tensor) else None
        if target is not None:
            return target
    return Target(name or names[0], None)


def _checked_index(name: str, index: tuple[int, ...] | None, outputs: Tensors) -> tuple[int, ...]:
    """The index, or that of the first element for None.

    Raises:
        UsageError: the entry does not return the tensor, or it does not have the element.
    """
    if name not in outputs:
        raise UsageError(f"the entry returns no {name!r}; it returns {', '.join(outputs)}")
    shape = tuple(outputs[name].shape)
    if 0 in shape:
        raise UsageError(f"{name} is empty: its shape is {list(shape)}")
    if index is None:
        return (0,) * len(shape)
    if len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
        raise UsageError(f"{name} has no element {list(index)}: its shape is {list(shape)}")
    return index


def _explain_element(
    session: Session, options: Options, location: Location | None, index: tuple[int, ...]
) -> Explanation:
    """Explain the element of the output, or of the buffer of a kernel."""
    assert session.log is not None
    log = session.log
    if location is not None:
        launch, buffer, at = log.find(location.returned, location.mine)
        return explain_element(log, launch, buffer, at, block=options.block)
    assert options.buffer is not None
    found = [each for each in _launches(log, options.rank) if options.buffer in each.written]
    if not found:
        others = _alternatives(session, options.rank)
        raise UsageError(f"--buffer: no kernel writes {options.buffer!r}\n{others}")
    return explain_element(log, found[-1], options.buffer, index, block=options.block)


def _launches(log: LaunchLog, rank: int | None) -> list[Launch]:
    """The launches of a rank; None for all ranks."""
    return [launch for launch in log.launches if rank in (None, launch.rank)]


def _alternatives(session: Session, rank: int | None) -> str:
    """Launches and buffers that can be explained instead, as text."""
    assert session.log is not None
    launches = _launches(session.log, rank)
    if not launches:
        return "the case ran no kernel" + ("" if rank is None else f" on rank {rank}")
    lines = [f"  {launch}: {', '.join(sorted(launch.written))}" for launch in launches]
    return "\n".join(["explain a buffer of a kernel with --buffer NAME --index I,J,…:", *lines])


def _heading(problem: Problem, outputs: Tensors, location: Location) -> Iterator[str]:
    """The element with its expected and actual value."""
    name, index = location.name, location.index
    info: TensorInfo = problem.outputs[name]
    parts = []
    for dim, at in zip(info.dims, index, strict=False):
        parts += [f"{key.replace('_', ' ')} {value}" for key, value in dim.describe(at).items()]
    yield f"{name}[{', '.join(map(str, index))}]: {', '.join(parts)}"
    values = f"got {float(outputs[name][index].double()):.6g}"
    if problem.has_reference:
        values = f"expected {float(problem.reference()[name][index]):.6g}, {values}"
    yield f"  {'values':<{_LABEL}}{values}"
    if location.words:
        yield f"  {'of':<{_LABEL}}{location.words}"


def _precision_lines(
    explanation: Explanation, problem: Problem, location: Location, log: LaunchLog
) -> Iterator[str]:
    """The lines that compare an element and its float64 run with the reference."""
    found = precision_of(explanation, problem, location, log)
    if found is None:
        return
    yield ""
    yield f"  {'reference':<{_LABEL}}{found.reference:.6g}"
    if not found.lost:
        unsure = "the kernel's inputs may have been rounded before"
        verdict = "not precision" if found.certain else unsure
        far = f"a float64 run is as far from it ({found.wide:.1e} of {found.error:.1e})"
        if not math.isfinite(found.error):
            far = f"a float64 run gives {found.exact}"
        yield f"  {'':<{_LABEL}}{far}: {verdict}"
    elif found.error > 0:
        yield (
            f"  {'':<{_LABEL}}a float64 run is close to it ({found.wide:.1e} of "
            f"{found.error:.1e}): the error is precision"
        )
