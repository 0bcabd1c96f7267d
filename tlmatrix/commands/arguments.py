"""The parser of the command line, made from the table of options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tlmatrix.exit_codes import ExitCode
from tlmatrix.options.table import COMMANDS, options_of_runs
from tlmatrix.words import guess, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.options.option import Option


class _Help(argparse.HelpFormatter):
    """Help with room for the options, so that most of them take one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=21)


class _Parser(argparse.ArgumentParser):
    """Reports unknown arguments with the usage of their command; accepts paths after options."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of argparse
        super().__init__(**{"formatter_class": _Help, **options})

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: Any = None,  # noqa: ANN401 - as argparse has it
    ) -> tuple[Any, list[str]]:
        """Parse `args`; nothing is left over."""
        parsed, extras = super().parse_known_args(args, namespace)
        if hasattr(parsed, "paths") and not any(word.startswith("-") for word in extras):
            parsed.paths += extras
        elif extras:
            unknown = next((word for word in extras if word.startswith("-")), extras[0])
            near = guess(unknown, [name for name in self._option_string_actions if len(name) > 4])
            meant = f"; did you mean {near}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(extras)}{meant}")
        return parsed, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        """Suggest the choice that was probably meant."""
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - its only name
            raise argparse.ArgumentError(
                None, f"no command {value!r}{nearest(value, action.choices)}"
            )
        raise argparse.ArgumentError(action, f"no {value!r}{nearest(value, action.choices)}")


def command_line() -> argparse.ArgumentParser:
    """The parser of `tlmatrix`.

    The namespace that it returns has in `command` the name of the command, and the values of its
    options (`tlmatrix.options.table.COMMANDS`).
    """
    keys = ", ".join(option.name for option in options_of_runs() if option.toml)
    parser = _Parser(
        prog="tlmatrix",
        description="Test TileLang kernels on a matrix of cases that a YAML spec declares.",
        epilog=f"exit codes:\n{ExitCode.table()}\n\n[tool.tlmatrix] in pyproject.toml "
        f"sets defaults:\n{keys}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        _add_options(
            commands.add_parser(
                name, usage=command.usage, help=command.help, description=command.description
            ),
            command.options,
        )
    return parser


def _add_options(parser: argparse.ArgumentParser, options: Iterable[Option[Any]]) -> None:
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for option in options:
        group = groups.get(option.group) or parser.add_argument_group(option.group)
        groups[option.group] = group
        group.add_argument(*option.flags, **option.for_argparse())


def _version() -> str:
    from importlib.metadata import version

    return version("tlmatrix")
