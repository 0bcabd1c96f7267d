"""`tlmatrix explain`: shows how one output element of a case was computed.

The case runs once on the interpreter, which logs its launches. A backward slice of the kernel that
wrote the element follows (`tlmatrix.interpreter.explain`). Then parts of the inputs are replaced to
measure on which of them the element depends, in the kernel and in the reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.cases import named_case, raw_index
from tlmatrix.commands.screen import screen_width
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.explain.inputs import influence_lines
from tlmatrix.explain.location import locate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tlmatrix.config import Config
    from tlmatrix.explain.location import Location
    from tlmatrix.interpreter import Explanation, Session
    from tlmatrix.interpreter.explain import Launch, LaunchLog
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, TensorInfo, Tensors
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

__all__ = ["explain"]

_LABEL = 10


def explain(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Explain an element of the case.

    Raises:
        UsageError: the spec, case, tensor or element does not exist.
        SpecError: the spec is invalid.
    """
    from tlmatrix.backend import EntryError
    from tlmatrix.interpreter import NotMadeError, Unsupported, interpret
    from tlmatrix.run.runner import Runner

    _, spec, case = named_case(arguments.case, arguments.values, config)
    seed = arguments.seed if arguments.seed is not None else config.seed
    runner = Runner("interpreter", seed=seed, roots=(config.root,))
    if case.origin == "reject":
        raise UsageError(f"{case.id} is an invalid input: the entry refuses it without output")
    name, index = _element(arguments, runner, spec, case)
    problem, run = runner.prepared(spec, case)
    with interpret(trace=True) as session:
        try:
            outputs = run(problem)
        except EntryError as error:
            raise UsageError(f"the case raises {error.error!r}: no output to explain") from error
    print(f"{spec.name}: {case.id}\nseed {seed}\n")
    explanation: Explanation | None = None
    location: Location | None = None
    if arguments.buffer is not None:
        index = _numbers(arguments.index or "", "--index")
    else:
        index = _checked_index(name, index, outputs)
        location = locate(spec, problem, outputs, name, index, arguments.rank)
        for line in _heading(problem, outputs, location):
            print(line)
        print()
    try:
        explanation = _explain_element(session, arguments, location, index)
    except NotMadeError as error:
        print(f"{error}\n{_alternatives(session, arguments.rank)}")
    except Unsupported as error:
        print(f"cannot explain: {error}")
    except ValueError as error:
        raise UsageError(str(error)) from error
    if explanation is not None:
        for line in _explanation_lines(explanation, full=arguments.full):
            print(line)
    if location is not None:
        if explanation is not None:
            assert session.log is not None
            for line in _precision_lines(explanation, problem, location, session.log):
                print(line)
        if not arguments.no_inputs:
            for line in influence_lines(runner, spec, case, problem, explanation, location):
                print(line)
    if arguments.picture and explanation is not None:
        _draw(session, explanation, Path(arguments.picture))
    return ExitCode.OK


def _element(
    arguments: argparse.Namespace, runner: Runner, spec: Spec, case: Case
) -> tuple[str, tuple[int, ...] | None]:
    """The tensor and element of the options, or else the worst one of the case's first finding."""
    problem, _ = runner.prepared(spec, case)
    names = list(problem.outputs)
    name = arguments.tensor
    if name is not None and name not in names:
        raise UsageError(f"--tensor: no output {name!r}; the case has {', '.join(names)}")
    if arguments.index is not None:
        return name or names[0], _numbers(arguments.index, "--index")
    for finding in runner.run(spec, case).findings:
        info = problem.outputs.get(str(finding.tensor))
        if info is None or name not in (None, info.name):
            continue
        location = raw_index(info, finding)
        if location is not None:
            return info.name, location
    return name or names[0], None


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace(" ", ",").split(",") if part)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: must be numbers separated by commas") from error


def _checked_index(name: str, index: tuple[int, ...] | None, outputs: Tensors) -> tuple[int, ...]:
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
    session: Session,
    arguments: argparse.Namespace,
    location: Location | None,
    index: tuple[int, ...],
) -> Explanation:
    """Explain the element of the output, or of a kernel's `--buffer`."""
    from tlmatrix.interpreter.explain import explain_element

    assert session.log is not None
    log = session.log
    block = _numbers(arguments.block, "--block") if arguments.block else None
    if location is not None:
        launch, buffer, at = log.find(location.returned, location.mine)
        return explain_element(log, launch, buffer, at, block=block)
    found = [each for each in _launches(log, arguments.rank) if arguments.buffer in each.written]
    if not found:
        others = _alternatives(session, arguments.rank)
        raise UsageError(f"--buffer: no kernel writes {arguments.buffer!r}\n{others}")
    return explain_element(log, found[-1], arguments.buffer, index, block=block)


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
    from tlmatrix.report.text import number

    name, index = location.name, location.index
    info: TensorInfo = problem.outputs[name]
    parts = []
    for dim, at in zip(info.dims, index, strict=False):
        parts += [f"{key.replace('_', ' ')} {value}" for key, value in dim.describe(at).items()]
    yield f"{name}[{', '.join(map(str, index))}]: {', '.join(parts)}"
    values = f"got {number(float(outputs[name][index].double()))}"
    if problem.has_reference:
        values = f"expected {number(float(problem.reference()[name][index]))}, {values}"
    yield f"  {'values':<{_LABEL}}{values}"
    if location.words:
        yield f"  {'of':<{_LABEL}}{location.words}"


def _explanation_lines(explanation: Explanation, *, full: bool) -> Iterator[str]:
    from tlmatrix.interpreter.explain.words import told

    yield from told(explanation, full=full, width=screen_width(120))


def _precision_lines(
    explanation: Explanation, problem: Problem, location: Location, log: LaunchLog
) -> Iterator[str]:
    """Whether rounding explains the error: a float64 run is then closer to the reference."""
    exact = explanation.exact
    if exact is None or explanation.earlier is not None or len(explanation.writers) != 1:
        return
    if not problem.has_reference or any(source.made_by for source in explanation.sources):
        return
    if explanation.index != location.mine and explanation.buffer != location.name:
        return
    reference = float(problem.reference()[location.name][location.index])
    error, wide = abs(explanation.value - reference), abs(exact - reference)
    yield ""
    yield f"  {'reference':<{_LABEL}}{reference:.6g}"
    if error != error or (error > 0 and wide > error / 2):  # noqa: PLR0124 - NaN is unequal to itself
        rounded = _inputs_may_be_rounded(explanation, location, log)
        verdict = "the kernel's inputs may have been rounded before" if rounded else "not precision"
        far = f"a float64 run is as far from it ({wide:.1e} of {error:.1e})"
        yield f"  {'':<{_LABEL}}{far}: {verdict}"
    elif error > 0:
        yield (
            f"  {'':<{_LABEL}}a float64 run is close to it ({wide:.1e} of "
            f"{error:.1e}): the error is precision"
        )


def _inputs_may_be_rounded(explanation: Explanation, location: Location, log: LaunchLog) -> bool:
    """Whether an earlier kernel may have rounded a tensor that the explained kernel reads."""
    inputs = {tensor.data_ptr() for tensor in location.given.values()}
    read = [explanation.tensors(source.buffer) for source in explanation.sources]
    return any(tensor.data_ptr() not in inputs for tensor in read) and any(
        launch.live[name].is_floating_point()
        for launch in log.launches
        if launch.number < explanation.launch
        for name in launch.written
    )


# Pictures -----------------------------------------------------------------------------------


def _draw(session: Session, explanation: Explanation, path: Path) -> None:
    from tlmatrix.interpreter.explain import mapped
    from tlmatrix.interpreter.explain.pictures import launch_picture

    assert session.log is not None
    launch = session.log.launches[explanation.launch - 1]
    picture = launch_picture(launch, mapped(launch), explanation.buffer, explanation.index)
    path.write_text(picture, encoding="utf-8")
    print(f"\npicture of launch {explanation.launch}: {path}")
