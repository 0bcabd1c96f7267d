"""The draft of a spec: from a signature, a trace, an example call or recorded calls."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.draft.calls import (
    Opaque,
    alike,
    calls_of_definition,
    read_calls,
    seen,
    signature,
)
from tlmatrix.draft.families import built_in
from tlmatrix.draft.interface import interface_of, signature_interface
from tlmatrix.draft.probes import call_in_other_precision, probed
from tlmatrix.draft.recorder import Recorder, codes_of
from tlmatrix.draft.references import find_references, parameters_of
from tlmatrix.draft.roles import recognize
from tlmatrix.draft.targets import target_of
from tlmatrix.draft.writer import draft_of
from tlmatrix.dtypes import DTYPES
from tlmatrix.exit_codes import UsageError
from tlmatrix.processes import ForkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.draft.calls import Call
    from tlmatrix.draft.interface import Interface
    from tlmatrix.draft.references import Found
    from tlmatrix.draft.targets import Target
    from tlmatrix.draft.text import Draft

_SHOW_A_CALL = "give an example call (--call, --script or --calls) to have this filled in"


class Drafts:
    """The draft of a target, with other guesses where a trial refutes them.

    Attributes:
        interface: with guesses about its sizes.
        references: the functions that may be its reference.
        notes: lines for the user.
        stub: comment lines where the reference is missing.
        found: the one of the draft; None without one.
        adapted: what the trial changes in each draft.
    """

    def __init__(
        self,
        target: Target,
        interface: Interface,
        references: Sequence[Found],
        notes: Sequence[str] = (),
        stub: Sequence[str] = (),
    ) -> None:
        self._target = target
        self._notes = notes
        self._stub = stub
        self.references = references
        self.found = next(iter(references), None)
        self.interface = interface
        self.adapted: tuple[Callable[[Draft], Draft], ...] = ()

    def changed(self, **changes: Any) -> Drafts:  # noqa: ANN401 - values of attributes
        """The same with other attributes."""
        found = copy(self)
        vars(found).update(changes)
        return found

    def __call__(self) -> Draft:
        """The draft of the interface as it is."""
        recognition = recognize(self.interface)
        problem = None
        if self.found is None or self.found.target.startswith("torch"):
            problem = built_in(self.interface, recognition)
        found = self.found if problem is None else None
        draft = draft_of(self._target, self.interface, recognition, found, problem)
        for adapt in self.adapted:
            draft = adapt(draft)
        return replace(draft, stub=(*self._stub, *draft.stub), notes=(*draft.notes, *self._notes))


def drafts_for(
    text: str,
    *,
    call: str | None = None,
    script: Path | None = None,
    calls: Path | None = None,
) -> Drafts:
    """The drafts of the spec of `package.module:name`.

    Args:
        text: the name.
        call: an expression that calls it, over the names of its module and of the script.
        script: a program that calls it, or makes the tensors of `call`.
        calls: a file of `tlmatrix record`, or a definition of FlashInfer's traces.

    Raises:
        UsageError: the name does not exist, is not callable, or the example fails.
    """
    target = target_of(text)
    if call is not None or script is not None:
        return drafts_of_calls(target, _example_calls(target, call, script))
    if calls is not None:
        return drafts_of_calls(target, _file_calls(target, calls))
    if not target.is_factory:
        return Drafts(target, signature_interface(target), (), [_SHOW_A_CALL])
    from tlmatrix.draft.factories import guesses, trace

    try:
        interface = trace(target)
    except ForkError as error:  # the factory may not accept the guesses
        why = str(error).splitlines()[0][:160]
        failed = "tracing it with guessed arguments failed"
        arguments = [replace(each, value=seen(each.value)) for each in guesses(target)]
        guessed = signature_interface(target, arguments)
        stub = [f"{failed.capitalize()}, so these tensors are guesses:", why]
        return Drafts(target, guessed, (), [f"{failed} ({why}); {_SHOW_A_CALL}"], stub)
    return Drafts(target, interface, find_references(target))


def drafts_of_calls(target: Target, every: Sequence[Call], reference: str = "") -> Drafts:
    """The drafts of recorded calls.

    Args:
        target: the code under test.
        every: its calls.
        reference: its reference, `package.module:function`, if it is known.

    Raises:
        UsageError: a spec cannot write its arguments.
    """
    every = [_without_objects(target, call) for call in every]
    chosen = alike(every)
    if opaque := chosen[0].opaque:
        kinds = ", ".join(f"{name} ({kind})" for name, kind in opaque.items())
        raise UsageError(
            f"{target.text} takes objects that a spec cannot write: {kinds}; name a function that "
            "makes them from numbers and tensors"
        )
    for name, each in (*chosen[0].tensors.items(), *chosen[0].results.items()):
        if each.dtype not in DTYPES:
            raise UsageError(f"{target.text}: specs have no dtype {each.dtype}, that of {name}")
    if target.is_factory:
        from tlmatrix.draft.factories import traced_sizes

        names = traced_sizes(target, chosen[0])
        chosen = [replace(call, names={**call.names, **names}) for call in chosen]
    interface = interface_of(target, chosen)
    if known := [k for k, call in enumerate(chosen) if call.known]:
        interface, chosen = interface.of_calls(known), [chosen[k] for k in known]
    compared = chosen if any(call.compared for call in chosen) else every
    references = find_references(target, compared, reference)
    drafts = Drafts(target, interface, references)
    own = (drafts.changed(found=each) for each in references)
    return next((each for each in own if each().complete), drafts)


def _without_objects(target: Target, call: Call) -> Call:
    """The call without objects for which the code under test has a default."""
    functions = (target.found, getattr(target.found, "forward", None), target.written)
    defaults = {
        name
        for function in filter(None, functions)
        for name, each in (parameters_of(function) or {}).items()
        if each.default is not each.empty
    }
    given, made = (
        {n: e for n, e in each.items() if not (isinstance(e, Opaque) and n in defaults)}
        for each in (call.arguments, call.construct)
    )
    return replace(call, arguments=given, construct=made)


# Examples ----------------------------------------------------------------------------------------


def recorded_calls(target: Target, example: Callable[[], object]) -> list[Call]:
    """The calls of a target that an example makes on the interpreter, each of another kind once.

    The first is made again, with other values, for what that shows (`probes`).
    """
    from tlmatrix.interpreter import interpret
    from tlmatrix.interpreter.frontend.device import stand_in

    found: dict[str, Call] = {}

    def keep(call: Call) -> None:
        if call.target == target.text:
            found.setdefault(signature(call), call)

    recorder = Recorder(keep, Path.cwd(), codes_of([target.text]))
    with interpret(), stand_in():
        with recorder.recording():
            example()
            live = recorder.live.get(target.text)
            if live is not None:
                call_in_other_precision(target, live)
        first = [] if live is None else [probed(target, live)]
    return [*first, *list(found.values())[len(first) :]]


def _example_calls(target: Target, call: str | None, script: Path | None) -> list[Call]:
    def example() -> None:
        names = {} if script is None else _run_script(script)
        if call is not None:
            _evaluate(call, target, names)

    calls = recorded_calls(target, example)
    if not calls:
        remedy = "; give the call with --call" if call is None else ""
        raise UsageError(f"the example does not call {target.name}{remedy}")
    return calls


def _file_calls(target: Target, path: Path) -> list[Call]:
    import json

    if path.suffix == ".json":
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--calls {path}: {error}") from error
        return calls_of_definition(data, target.text)
    found = read_calls(path)
    if target.text not in found:
        known = ", ".join(sorted(found)) or "nothing"
        raise UsageError(f"{path} has no call of {target.text}; it has {known}")
    return found[target.text]


def _run_script(script: Path) -> dict[str, Any]:
    """Run a program with its output on stderr, and return its global names.

    Raises:
        UsageError: the program does not exist, or raises.
    """
    from tlmatrix.interpreter.frontend.scripts import run_as_main

    if not script.is_file():
        raise UsageError(f"no such script: {script}")
    try:
        with redirect_stdout(sys.stderr):
            return run_as_main(str(script))
    except Exception as error:
        raise UsageError(f"--script {script}: {type(error).__name__}: {error}") from error


def _evaluate(call: str, target: Target, names: dict[str, Any]) -> None:
    """Evaluate an example call, in which `f` is also the operator.

    Raises:
        UsageError: the call raises.
    """
    shown = target.name.split(".")[0]
    namespace = {"torch": torch, "f": target.found, **vars(target.module), **names}
    namespace[shown] = getattr(target.module, shown)
    try:
        eval(call, namespace)  # noqa: S307 - the user's own command line
    except Exception as error:
        raise UsageError(f"--call {call!r}: {type(error).__name__}: {error}") from error
