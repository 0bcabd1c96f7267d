"""`tlmatrix new`: writes and runs a first spec of an operator or a factory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.new.families import family_draft
from tlmatrix.commands.new.first_run import run_draft
from tlmatrix.commands.new.signatures import signature_draft
from tlmatrix.commands.new.spec_text import spec_text
from tlmatrix.commands.new.targets import target_of
from tlmatrix.exit_codes import ExitCode, UsageError, writing

if TYPE_CHECKING:
    import argparse

    from tlmatrix.commands.new.drafts import Draft
    from tlmatrix.config import Config


def new(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the spec, or write it to a new file and run it.

    Raises:
        UsageError: the callable does not exist, its example fails, or the file exists.
    """
    path = None if arguments.output is None else Path(arguments.output)
    if path is not None and path.exists():
        raise UsageError(f"{path} exists; remove it, or choose another file")
    script = None if arguments.script is None else Path(arguments.script)
    draft = draft_for(arguments.target, call=arguments.call, script=script)
    if path is None:
        print(spec_text(draft), end="")
        return ExitCode.OK
    with writing("-o", path):
        path.write_text(spec_text(draft), encoding="utf-8")
    lines = [f"wrote {path}", *(f"  {note}" for note in draft.notes)]
    print("\n".join(lines))
    if draft.complete and not arguments.no_run:
        for line in run_draft(draft, path, [config.root]):
            print(line)
    elif draft.complete:
        print(f"next: tlmatrix run {shlex.quote(str(path))}")
    return ExitCode.OK


def draft_for(text: str, *, call: str | None = None, script: Path | None = None) -> Draft:
    """A draft of the spec of `package.module:name`.

    Raises:
        UsageError: the name does not exist, is not callable, or the example fails.
    """
    target = target_of(text)
    if call is not None or script is not None:
        from tlmatrix.commands.new.drafting import draft_interface
        from tlmatrix.commands.new.recording import record

        interface = record(target, call=call, script=script)
        return family_draft(target, interface) or draft_interface(target, interface)
    if not target.is_factory:
        return signature_draft(target)
    from tlmatrix.commands.new.drafting import draft_interface
    from tlmatrix.commands.new.eager import example_tensors
    from tlmatrix.commands.new.factories import trace
    from tlmatrix.commands.new.signatures import untraced_draft

    tensors = example_tensors(target)
    try:
        if tensors is None:
            interface = trace(target.found, target.text, target.parameters)
        else:
            from tlmatrix.commands.new.recording import record_call

            interface = record_call(target, tensors)
    except Exception as error:  # noqa: BLE001 - the factory may not accept the guesses
        return untraced_draft(target, error)
    return family_draft(target, interface) or draft_interface(target, interface)
