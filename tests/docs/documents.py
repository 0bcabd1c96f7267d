"""Executes a Markdown document: writes its files, runs its commands, compares their output.

Fenced blocks that matter, by their info string:

    ```yaml title="a.yaml"   the block is the file's content
    ```diff title="a.py"     lines with - become the lines with +, at the one place they stand
    ```console exit="1"      lines with $ are run; the others are what the last command prints,
                             with ... for what differs from run to run; exit is its exit code,
                             and numbers="any" lets numbers differ

Other blocks are not executed.
"""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Block", "Command", "blocks", "play"]


@dataclass(frozen=True)
class Block:
    language: str
    options: dict[str, str]
    text: str
    line: int


@dataclass
class Command:
    text: str
    exit: int
    numbers: str
    expected: list[str] = field(default_factory=list)


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found: list[Block] = []
    fence: tuple[str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        if fence is None and line.startswith("```"):
            fence, lines = (line[3:].strip(), number), []
        elif fence is not None and line == "```":
            options = dict(re.findall(r'(\w+)="([^"]*)"', fence[0]))
            language = fence[0].partition(" ")[0]
            found.append(Block(language, options, "\n".join(lines) + "\n", fence[1]))
            fence = None
        elif fence is not None:
            lines.append(line)
    return found


def play(document: Path, folder: Path, env: dict[str, str], *, skip: tuple[str, ...] = ()) -> int:
    """Execute a document in `folder`, and return the number of commands that ran.

    Commands that start with a prefix in `skip` are not run.

    Raises:
        AssertionError: the exit code or the output of a command differs from the document.
    """
    ran = 0
    for block in blocks(document):
        place = f"{document.name}:{block.line}"
        if "title" in block.options:
            _write(block, folder / block.options["title"], place)
        elif block.language == "console":
            for command in _commands(block):
                if not command.text.startswith(skip or ("\0",)):
                    _run(command, folder, env, place)
                    ran += 1
    return ran


def _write(block: Block, path: Path, place: str) -> None:
    if block.language != "diff":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        return
    removed = "".join(f"{x[1:]}\n" for x in block.text.splitlines() if x.startswith("-"))
    added = "".join(f"{x[1:]}\n" for x in block.text.splitlines() if x.startswith("+"))
    before = path.read_text()
    assert before.count(removed) == 1, f"{place}: expected once in {path.name}:\n{removed}"
    path.write_text(before.replace(removed, added))


def _commands(block: Block) -> list[Command]:
    commands: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], 0, block.options.get("numbers", "same")))
        elif commands and commands[-1].text.endswith("\\"):
            commands[-1].text = commands[-1].text[:-1] + line.strip()
        elif commands:
            commands[-1].expected.append(line)
    if commands:
        commands[-1].exit = int(block.options.get("exit", "0"))
    return commands


def _run(command: Command, folder: Path, env: dict[str, str], place: str) -> None:
    done = subprocess.run(
        command.text,
        check=False,
        shell=True,
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    shown = f"{place}: $ {command.text}\n{done.stdout}"
    assert done.returncode == command.exit, f"exit {done.returncode}, not {command.exit}: {shown}"
    missing = _missing(command.expected, done.stdout, any_number=command.numbers == "any")
    assert missing is None, f"no line like {missing!r} (in this order): {shown}"


def _missing(expected: list[str], printed: str, *, any_number: bool) -> str | None:
    """The first expected line that is missing from the output, in order; None if none is."""
    plain = _without_numbers if any_number else _words
    lines = iter(plain(line) for line in printed.splitlines())
    for line in expected:
        if line.strip() in {"", "..."}:
            continue
        pattern = ".*".join(re.escape(part) for part in plain(line).split("..."))
        if not any(re.fullmatch(pattern, printed_line) for printed_line in lines):
            return line
    return None


def _words(line: str) -> str:
    return " ".join(line.split())


def _without_numbers(line: str) -> str:
    return re.sub(r"-?\d+(\.\d+)?(e[+-]\d+)?", "0", _words(line))
