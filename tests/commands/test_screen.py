"""The width of output, on a terminal and in a pipe."""

import io
import os

from tlmatrix.cli import command_named, main
from tlmatrix.commands.screen import print_wrapped, screen_width
from tlmatrix.exit_codes import ExitCode
from tlmatrix.options.table import COMMANDS


def test_the_width_of_a_terminal_is_used(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda **_: os.terminal_size((57, 24)))
    assert screen_width(100) == 57


def test_a_pipe_has_the_given_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "57")
    assert screen_width(100) == 100


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_are_wrapped_only_on_a_terminal(monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((24, 24)))
    line = "    where rows != 7: removes 1, a-word-longer-than-a-line-stays-whole"
    terminal, pipe = _Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        print_wrapped(f"scale  scale.yaml\n{line}", stream)
    assert pipe.getvalue().splitlines() == ["scale  scale.yaml", line]
    assert terminal.getvalue().splitlines() == [
        "scale  scale.yaml",
        "    where rows != 7:",
        "        removes 1,",
        "        a-word-longer-than-a-line-stays-whole",
    ]


def test_errors_of_a_spec_fit_the_terminal(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((60, 24)))
    monkeypatch.setattr("sys.stderr", terminal := _Terminal())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(
        "name: bad\nproblem: attention\nentry: a:b\naxes: {dtype: [float16]}\n"
        "tiers: {quick: pairwsie}\n"
    )
    assert main(["check", "bad.yaml"]) == ExitCode.USAGE
    lines = terminal.getvalue().splitlines()
    assert lines[0].startswith("bad.yaml:5:")
    assert len(lines) > 1
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


def test_every_command_of_the_table_exists():
    assert {"run", "fuzz", "repro", "report"} <= set(COMMANDS)
    for name, command in COMMANDS.items():
        assert callable(command_named(command.target)), name
