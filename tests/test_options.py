"""The table of options, what derives from it, and limits of numbers."""

import pickle
from dataclasses import replace
from functools import cache

import pytest

from tlmatrix.commands.arguments import command_line
from tlmatrix.config import ConfigError, load_config
from tlmatrix.engine.worker import WorkerSettings
from tlmatrix.exit_codes import ExitCode
from tlmatrix.options.option import Option, whole
from tlmatrix.options.table import BACKEND, COMMANDS, SEED, RunOptions
from tlmatrix.pytest_plugin import pytest_addoption
from tlmatrix.run.runner import Runner

_NUMBERS = ("--seed", "--timeout", "--workers", "--examples", "--minutes", "--rank", "--seconds",
            "--margin", "--sms", "--grown", "--slower", "--last", "--perturb")  # fmt: skip


def _commands():
    parser = command_line()
    (commands,) = (each for each in parser._actions if isinstance(each.choices, dict))
    return commands.choices


_OPTIONS = [
    (name, option)
    for name, command in _commands().items()
    for action in command._actions
    for option in action.option_strings
    if option in _NUMBERS
]


_parser = cache(command_line)


def _error(words, capsys, parser=None):
    with pytest.raises(SystemExit) as caught:
        (parser or _parser()).parse_args(words)
    assert caught.value.code == ExitCode.USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize(("command", "option"), _OPTIONS)
@pytest.mark.parametrize("value", ["-1", "-3", "many", "nan", "inf", "1e400", "", "\u00b2", "1_0"])
def test_a_number_outside_its_limits_is_an_error(command, option, value, capsys):
    paths = {"diff": ["a", "b"], "explain": ["a::b"], "repro": ["a::b"], "exec": ["a.py"]}
    shown = _error([command, f"{option}={value}", *paths.get(command, [])], capsys)
    assert option in shown
    assert repr(value) in shown
    assert " from " in shown or " or more" in shown or " above " in shown


def test_every_option_with_a_number_is_listed_here():
    typed = {
        option
        for command in _commands().values()
        for action in command._actions
        for option in action.option_strings
        if action.type is not None and option.startswith("--")
    }
    assert typed == set(_NUMBERS)
    bare = [
        action.type
        for command in _commands().values()
        for action in command._actions
        if action.type in (int, float)
    ]
    assert not bare


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-n", "0"], "0"),
        (["-n", "auto"], "auto"),
        (["-n", "007"], "7"),
        (["--timeout", "0"], None),
        (["--seed", "9223372036854775807"], None),
    ],
)
def test_numbers_at_their_limits_are_accepted(words, expected):
    arguments = command_line().parse_args(["run", *words])
    assert expected in (None, arguments.workers)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("timeout = -1", "timeout = -1: must be a number of seconds from 0 to 10,000,000"),
        ("timeout = nan", "timeout = nan: must be a number of seconds"),
        ("seed = -3", "seed = -3: must be a whole number, 0 or more"),
        ("timeout = true", "timeout = True: must be a number of seconds"),
    ],
)
def test_numbers_of_the_configuration_have_the_same_limits(line, message, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"[tool.tlmatrix]\n{line}\n")
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "no command 'rnu'; did you mean 'run'?"),
        (["fuz", "x.yaml"], "no command 'fuz'; did you mean 'fuzz'?"),
        (["xyzzy"], "no command 'xyzzy'; known: adopt, bench, cache"),
        (["run", "--backend", "cud"], "argument --backend: no 'cud'; did you mean 'cuda'?"),
    ],
)
def test_a_mistyped_command_or_choice_has_a_suggestion(words, message, capsys):
    assert message in _error(words, capsys)


def test_the_help_of_run_has_the_machine_options_in_a_group(capsys):
    with pytest.raises(SystemExit):
        command_line().parse_args(["run", "--help"])
    _, group = capsys.readouterr().out.split("\nmachines and CI:\n")
    for option in ("arch", "keep", "compute-sanitizer", "ray", "shard", "times", "github"):
        assert f"  --{option} " in group


# An option from outside ---------------------------------------------------------------------------

TOY = Option("--toy N", "a toy", whole(1, 9), default=2, toml=True, pytest="a toy")


@pytest.fixture
def toy(monkeypatch):
    """The table with one more option of `run`."""
    run = COMMANDS["run"]
    monkeypatch.setitem(COMMANDS, "run", replace(run, options=(*run.options, TOY)))


def _toy_project(folder, value):
    (folder / "pyproject.toml").write_text(f"[tool.tlmatrix]\ntoy = {value}\n")
    return load_config(folder)


@pytest.mark.usefixtures("toy")
def test_an_option_of_the_table_reaches_the_parser_and_pytest(capsys):
    arguments = command_line().parse_args(["run", "--toy", "3"])
    assert arguments.toy == 3
    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)
    assert parser.parse_known_args(["--tlmatrix-toy", "3"]).tlmatrix_toy == 3
    assert "'10' is not a whole number from 1 to 9" in _error(
        ["run", "--toy=10"], capsys, command_line()
    )


@pytest.mark.usefixtures("toy")
def test_an_option_of_the_table_is_a_key_of_the_configuration(tmp_path):
    assert load_config(tmp_path)[TOY] == 2
    assert _toy_project(tmp_path, "5")[TOY] == 5
    with pytest.raises(ConfigError, match="toy = 10: must be a whole number from 1 to 9"):
        _toy_project(tmp_path, "10")


@pytest.mark.usefixtures("toy")
def test_an_option_of_the_table_reaches_runners_and_workers(tmp_path):
    config = _toy_project(tmp_path, "5")
    for words, expected in ([], 5), (["--toy", "3"], 3):
        options = config.chosen(command_line().parse_args(["run", "--seed", "7", *words]))
        sent = pickle.loads(pickle.dumps(WorkerSettings(options)))
        for known in options, sent.options:
            runner = Runner("interpreter", known)
            assert (runner.options[TOY], runner.seed) == (expected, 7)


def test_defaults_hold_for_options_without_a_value():
    options = RunOptions({"seed": 1}).updated({"seed": None, "backend": "cuda", "paths": []})
    assert (options[SEED], options[BACKEND]) == (1, "cuda")
    assert "paths" not in options.values
