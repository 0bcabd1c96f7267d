"""What commands print is as wide as the terminal, and does not change with it in a pipe."""

import os

from tlmatrix.commands.screen import screen_width


def test_a_terminal_tells_its_width(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((57, 24)))
    assert screen_width(100) == 57


def test_a_pipe_has_the_width_that_the_command_names(monkeypatch):
    monkeypatch.setenv("COLUMNS", "57")
    assert screen_width(100) == 100
