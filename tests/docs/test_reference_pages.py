"""The reference pages name all commands, options, public names, checks and spec keys."""

import argparse
import re
from pathlib import Path
from typing import get_args

import pytest

import tlmatrix
from tlmatrix.commands.arguments import command_line
from tlmatrix.options.table import options_of_runs, plugin_options
from tlmatrix.spec.model.fields import CHECKS, SanitizerName
from tlmatrix.spec.schema import json_schema

DOCS = Path(__file__).parents[2] / "docs"
CLI = (DOCS / "reference/cli.md").read_text(encoding="utf-8")
COMMANDS = next(
    action.choices
    for action in command_line()._actions
    if isinstance(action, argparse._SubParsersAction)
)


def options(command):
    """The spellings of the options of a command, without those of help."""
    return {
        spelling
        for action in COMMANDS[command]._actions
        for spelling in action.option_strings
        if action.dest != "help"
    }


def section(title):
    return CLI.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def named(text):
    """The options in code of a text: `-n N`, `--workers`."""
    code = " ".join(re.findall(r"`([^`]+)`", text))
    return set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", code))


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_of_a_command_is_named(command):
    common = named(section("Common options"))
    own = named(section(f"`tlmatrix {command}`"))
    assert options(command) - own - common == set()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_options_named_for_a_command_exist(command):
    table = "\n".join(
        line.split(" | ")[0]
        for line in section(f"`tlmatrix {command}`").splitlines()
        if line.startswith("| `-")
    )
    assert named(table) - options(command) == set()


def test_options_of_the_pytest_plugin_are_named():
    flags = {option.flag_of_pytest for option in plugin_options()}
    assert flags <= named(section("pytest"))


def test_every_key_of_the_configuration_is_named():
    keys = {option.name for option in options_of_runs() if option.toml}
    assert keys <= set(re.findall(r"^\| `(\w+)`", section("Configuration"), re.MULTILINE))


def test_every_public_name_of_the_package_is_described():
    text = (DOCS / "reference/python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `tlmatrix\.(\w+)", text, re.MULTILINE)
    assert sorted(rows) == sorted(tlmatrix.__all__)


def test_every_check_is_described():
    text = (DOCS / "reference/checks.md").read_text(encoding="utf-8")
    assert set(CHECKS) <= set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))


def test_every_sanitizer_is_described():
    text = (DOCS / "explanation/sanitizers.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert set(get_args(SanitizerName)) <= rows


def test_every_spec_key_stands_in_the_docs():
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((DOCS / "reference").rglob("*.md"))
    )
    schema = json_schema()
    missing = [
        name
        for model in (schema, *schema["$defs"].values())
        for part in (model, *model.get("anyOf", ()))
        for name in part.get("properties", ())
        if f"`{name}`" not in text
    ]
    assert missing == []
