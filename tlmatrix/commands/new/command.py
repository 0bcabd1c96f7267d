"""`tlmatrix new`: a first spec of an operator or a factory, written and run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.new.families import family_draft
from tlmatrix.commands.new.signatures import signature_draft
from tlmatrix.commands.new.spec_text import spec_text
from tlmatrix.commands.new.targets import target_of
from tlmatrix.commands.new.trying import tried
from tlmatrix.exit_codes import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

    from tlmatrix.commands.new.drafts import Draft
    from tlmatrix.config import Config

__all__ = ["draft_for", "new"]


def new(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the spec, or write it where there is no file yet, and run what was written.

    Raises:
        UsageError: there is no such callable, its example fails, or the file is there already.
    """
    path = None if arguments.output is None else Path(arguments.output)
    if path is not None and path.exists():
        raise UsageError(f"{path} is there already; remove it, or write to another file")
    script = None if arguments.script is None else Path(arguments.script)
    draft = draft_for(arguments.target, call=arguments.call, script=script)
    if path is None:
        print(spec_text(draft), end="")
        return ExitCode.OK
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(spec_text(draft), encoding="utf-8")
    lines = [f"wrote {path}", *(f"  {note}" for note in draft.notes)]
    print("\n".join(lines))
    if draft.complete and not arguments.no_run:
        for line in tried(draft, path, [config.root]):
            print(line)
    elif draft.complete:
        print(f"next: tlmatrix run {path}")
    return ExitCode.OK


def draft_for(text: str, *, call: str | None = None, script: Path | None = None) -> Draft:
    """A draft of the spec of `package.module:name`.

    Raises:
        UsageError: there is no such thing, it cannot be called, or the example fails.
    """
    target = target_of(text)
    if call is not None or script is not None:
        from tlmatrix.commands.new.recording import record
        from tlmatrix.commands.new.writing import draft_of

        observed = record(target, call=call, script=script)
        return family_draft(target, observed) or draft_of(target, observed)
    if not target.is_factory:
        return signature_draft(target)
    from tlmatrix.commands.new.eager import made_up_call
    from tlmatrix.commands.new.factories import trace
    from tlmatrix.commands.new.signatures import untraced_draft
    from tlmatrix.commands.new.writing import draft_of

    tensors = made_up_call(target)
    try:
        if tensors is None:
            observed = trace(target.found, target.text, target.parameters)
        else:
            from tlmatrix.commands.new.recording import record_call

            observed = record_call(target, tensors)
    except Exception as error:  # noqa: BLE001 - the guesses need not suit the factory
        return untraced_draft(target, error)
    return family_draft(target, observed) or draft_of(target, observed)
