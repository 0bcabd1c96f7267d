"""`tlmatrix explain`: shows how one output element of a case was computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.commands.cases import named_case
from tlmatrix.commands.screen import screen_width
from tlmatrix.exit_codes import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

    from tlmatrix.config import Config


def explain(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Explain an element of the case.

    Raises:
        UsageError: the spec, case, tensor or element does not exist.
        SpecError: the spec is invalid.
    """
    _, spec, case = named_case(arguments.case, arguments.values, config)
    from tlmatrix.explain.element import Options, explain_case
    from tlmatrix.run.runner import Runner

    runner = Runner("interpreter", config.chosen(arguments), roots=(config.root,))
    options = Options(
        tensor=arguments.tensor,
        index=_numbers(arguments.index, "--index"),
        buffer=arguments.buffer,
        block=_numbers(arguments.block, "--block"),
        rank=arguments.rank,
        full=arguments.full,
        inputs=not arguments.no_inputs,
        width=screen_width(120),
    )
    for line in explain_case(runner, spec, case, options):
        print(line)
    return ExitCode.OK


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace(" ", ",").split(",") if part)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: must be numbers separated by commas") from error
