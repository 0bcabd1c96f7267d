"""`tlmatrix explain`: how one output element of a case came about.

The case runs once on the interpreter, its launches kept; then the kernel that wrote the element
is followed back (`tlmatrix.interpreter.explain`), and parts of the inputs are replaced to see on
which the element depends, in the kernel and in the reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.cases import named_case, raw_index
from tlmatrix.commands.screen import screen_width
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.spec.sharding import has_ranks

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from tlmatrix.config import Config
    from tlmatrix.interpreter import Explanation, Session
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, TensorInfo, Tensors
    from tlmatrix.run.influence import Influence, Part
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.models import Spec

__all__ = ["explain"]

_LABEL = 10
_GROUPS = 16
"""Turns of a loop whose reads of one input are replaced apart; neighbours of more go together."""


def explain(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Explain an element of the case.

    Raises:
        UsageError: there is no such spec, case, tensor or element.
        SpecError: the spec is wrong.
    """
    from tlmatrix.backend import EntryError, backend_named
    from tlmatrix.interpreter import NotMadeError, Unsupported, interpret
    from tlmatrix.run.runner import Runner

    _, spec, case = named_case(arguments.case, arguments.values, config)
    seed = arguments.seed if arguments.seed is not None else config.seed
    runner = Runner(backend_named("interpreter"), seed=seed, roots=(config.root,))
    if case.origin == "reject":
        raise UsageError(f"{case.id} is a rejected input: it makes no output to explain")
    name, index = _element(arguments, runner, spec, case)
    problem, run = runner.prepared(spec, case)
    with interpret(trace=True) as session:
        try:
            outputs = run(problem)
        except EntryError as error:
            raise UsageError(f"the case raises {error.error!r}: no output to explain") from error
    print(f"{spec.name}: {case.id}\nseed {seed}\n")
    explanation: Explanation | None = None
    if arguments.buffer is not None:
        index = _numbers(arguments.index or "", "--index")
    else:
        index = _checked(name, index, outputs)
        for line in _heading(problem, outputs, name, index):
            print(line)
        print()
    try:
        explanation = _followed(session, arguments, outputs.get(name), index)
    except NotMadeError as error:
        if has_ranks(spec):
            print("not followed: kernels of several ranks write it, each a part")
        else:
            print(f"{error}\n{_others(session)}")
    except Unsupported as error:
        print(f"not followed: {error}")
    except ValueError as error:
        raise UsageError(str(error)) from error
    if explanation is not None:
        for line in _told(explanation, full=arguments.full):
            print(line)
    if arguments.buffer is None:
        if explanation is not None:
            for line in _verdict(explanation, problem, name, index):
                print(line)
        if not arguments.no_inputs:
            for line in _depends(runner, spec, case, problem, explanation, (name, index)):
                print(line)
    if arguments.picture and explanation is not None:
        _draw(session, explanation, Path(arguments.picture))
    return ExitCode.OK


def _element(
    arguments: argparse.Namespace, runner: Runner, spec: Spec, case: Case
) -> tuple[str, tuple[int, ...] | None]:
    """The tensor and element asked for, else the worst of the case's first finding."""
    problem, _ = runner.prepared(spec, case)
    names = list(problem.outputs)
    name = arguments.tensor
    if name is not None and name not in names:
        raise UsageError(f"--tensor: there is no {name!r}; the case has {', '.join(names)}")
    if arguments.index is not None:
        return name or names[0], _numbers(arguments.index, "--index")
    for finding in runner.run(spec, case).findings:
        info = problem.outputs.get(str(finding.tensor))
        if info is None or name not in (None, info.name):
            continue
        place = raw_index(info, finding)
        if place is not None:
            return info.name, place
    return name or names[0], None


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace(" ", ",").split(",") if part)
    except ValueError as error:
        raise UsageError(f"{option}: not numbers with commas: {text!r}") from error


def _checked(name: str, index: tuple[int, ...] | None, outputs: Tensors) -> tuple[int, ...]:
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


def _followed(
    session: Session,
    arguments: argparse.Namespace,
    tensor: torch.Tensor | None,
    index: tuple[int, ...],
) -> Explanation:
    """The explanation of the output's element, or of `--buffer` of a kernel."""
    from tlmatrix.interpreter.explain import explain_element

    assert session.log is not None
    log = session.log
    block = _numbers(arguments.block, "--block") if arguments.block else None
    if arguments.buffer is None:
        assert tensor is not None
        launch, buffer, place = log.find(tensor, index)
        return explain_element(log, launch, buffer, place, block=block)
    found = [launch for launch in log.launches if arguments.buffer in launch.written]
    if not found:
        raise UsageError(f"--buffer: no kernel writes {arguments.buffer!r}\n{_others(session)}")
    return explain_element(log, found[-1], arguments.buffer, index, block=block)


def _others(session: Session) -> str:
    """What can be followed instead."""
    assert session.log is not None
    if not session.log.launches:
        return "the case ran no kernel"
    lines = [f"  {launch}: {', '.join(sorted(launch.written))}" for launch in session.log.launches]
    told = "\n".join(lines)
    return f"what kernels wrote can be followed with --buffer NAME --index I,J,…:\n{told}"


def _heading(
    problem: Problem, outputs: Tensors, name: str, index: tuple[int, ...]
) -> Iterator[str]:
    from tlmatrix.report.text import number

    info: TensorInfo = problem.outputs[name]
    words = []
    for dim, at in zip(info.dims, index, strict=False):
        words += [f"{key.replace('_', ' ')} {value}" for key, value in dim.describe(at).items()]
    yield f"{name}[{', '.join(map(str, index))}]: {', '.join(words)}"
    told = f"got {number(float(outputs[name][index].double()))}"
    if problem.has_reference:
        told = f"expected {number(float(problem.reference()[name][index]))}, {told}"
    yield f"  {'values':<{_LABEL}}{told}"


def _told(explanation: Explanation, *, full: bool) -> Iterator[str]:
    from tlmatrix.interpreter.explain.words import told

    yield from told(explanation, full=full, width=screen_width(120))


def _verdict(
    explanation: Explanation, problem: Problem, name: str, index: tuple[int, ...]
) -> Iterator[str]:
    """Whether it is precision or mathematics: is the float64 run nearer to the reference?"""
    exact = explanation.exact
    if exact is None or explanation.earlier is not None or len(explanation.writers) != 1:
        return
    if not problem.has_reference:
        return
    if explanation.index != index and explanation.buffer != name:
        return
    reference = float(problem.reference()[name][index])
    error, wide = abs(explanation.value - reference), abs(exact - reference)
    yield ""
    yield f"  {'reference':<{_LABEL}}{reference:.6g}"
    if error != error or (error > 0 and wide > error / 2):  # noqa: PLR0124 - NaN is unequal to itself
        yield (
            f"  {'':<{_LABEL}}a float64 run is as far from it ({wide:.1e} of "
            f"{error:.1e}): not precision"
        )
    elif error > 0:
        yield (
            f"  {'':<{_LABEL}}a float64 run comes to it ({wide:.1e} of "
            f"{error:.1e}): what is left is precision"
        )


# What the element depends on ----------------------------------------------------------------


def _depends(
    runner: Runner,
    spec: Spec,
    case: Case,
    problem: Problem,
    explanation: Explanation | None,
    element: tuple[str, tuple[int, ...]],
) -> Iterator[str]:
    from tlmatrix.run.influence import influences

    yield ""
    parts = _parts(problem, explanation)
    try:
        found = influences(runner, spec, case, *element, parts)
    except LookupError as error:
        yield f"which inputs it depends on is not known: {error}"
        return
    yield "with other values in a part of an input the element changes by"
    yield from _table(found, problem)


def _parts(problem: Problem, explanation: Explanation | None) -> list[Part]:
    """Each input in parts: what the block read in each turn, and what it did not read."""
    import torch

    from tlmatrix.interpreter.explain.words import turn_words
    from tlmatrix.run.influence import Part

    read = _reads(problem, explanation)
    parts: list[Part] = []
    for name, tensor in problem.inputs.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        left = torch.ones(tensor.numel(), dtype=torch.bool)
        mine: list[Part] = []
        for loops, flat in read.get(name, ()):
            fresh = flat[left[flat]]
            left[fresh] = False
            if len(fresh):
                mine.append(Part(name, fresh, turn_words(loops) or "outside of loops"))
        step = -(-len(mine) // _GROUPS) or 1
        for start in range(0, len(mine), step):
            some = mine[start : start + step]
            words = some[0].read if len(some) == 1 else f"{some[0].read} to {some[-1].read}"
            parts.append(Part(name, torch.cat([p.elements for p in some]), words))
        rest = torch.nonzero(left).flatten()
        if len(rest):
            words = "not read" if mine else "not read by this kernel"
            parts.append(Part(name, rest, words if explanation is not None else "not known"))
    return parts


def _reads(
    problem: Problem, explanation: Explanation | None
) -> Mapping[str, Sequence[tuple[tuple[tuple[str, int], ...], torch.Tensor]]]:
    """What the followed blocks read of each input of the case, by turn."""
    import torch

    found: dict[str, list[tuple[tuple[tuple[str, int], ...], torch.Tensor]]] = {}
    names = {
        (tensor.data_ptr(), tensor.numel()): name
        for name, tensor in problem.inputs.items()
        if tensor.is_contiguous()
    }
    step = explanation
    while step is not None:
        for source in step.sources:
            tensor = step.tensors(source.buffer)
            name = names.get((tensor.data_ptr(), tensor.numel()))
            if name is not None and tensor.is_contiguous():
                turns = ((loops, torch.from_numpy(flat)) for loops, flat in source.turns)
                found.setdefault(name, []).extend(turns)
        step = step.earlier
    return found


def _table(found: Sequence[Influence], problem: Problem) -> Iterator[str]:
    from tlmatrix.interpreter.explain.spelling import place_of

    rows = [("input", "read in", "kernel", "reference", "")]
    for influence in found:
        part = influence.part
        place = place_of(part.elements.numpy(), tuple(problem.inputs[part.input].shape))
        if not place.startswith("["):
            place = f"{len(part.elements)} elements"
        name = f"{part.input}{place if place.startswith('[') else ': ' + place}"
        verdict = influence.verdict
        rows.append(
            (
                f"  {name}" if influence.narrowed else name,
                "" if influence.narrowed else part.read,
                _change(influence.kernel),
                _change(influence.reference),
                "" if verdict in ("alike", "neither") else f"<- {verdict}",
            )
        )
    widths = [max(len(row[c]) for row in rows) for c in range(5)]
    for row in rows:
        cells = [text.ljust(w) for text, w in zip(row, widths, strict=True) if w]
        yield ("  " + "  ".join(cells)).rstrip()


def _change(value: float) -> str:
    return "0" if value == 0 else f"{value:+.3e}"


# Pictures -----------------------------------------------------------------------------------


def _draw(session: Session, explanation: Explanation, path: Path) -> None:
    from tlmatrix.interpreter.explain import mapped
    from tlmatrix.interpreter.explain.pictures import launch_picture

    assert session.log is not None
    launch = session.log.launches[explanation.launch - 1]
    picture = launch_picture(launch, mapped(launch), explanation.buffer, explanation.index)
    path.write_text(picture, encoding="utf-8")
    print(f"\npicture of launch {explanation.launch}: {path}")
