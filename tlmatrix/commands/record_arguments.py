"""The arguments of the commands that read results files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.option_values import Number, Whole

if TYPE_CHECKING:
    import argparse

_FACTOR = Number("a number", 1, 1_000_000)


def add_record_commands(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    """Add `show`, `diff`, `report` and `history`."""
    show = commands.add_parser(
        "show",
        help="print the report of a recorded run again",
        description="Print the table and the findings of a recorded run or search again.",
    )
    show.add_argument(
        "results",
        nargs="?",
        metavar="RESULTS.jsonl",
        help="the results file of `run` or `fuzz` (default: the last)",
    )
    show.add_argument("-q", "--quiet", action="store_true", help="as for run")
    show.add_argument("-v", "--verbose", action="store_true", help="as for run")
    add_ci_options(show)
    show.set_defaults(command="results:show")

    diff = commands.add_parser(
        "diff",
        help="compare two runs: newly failing, fixed, larger errors, slower",
        description="Compare two results files case by case. Exit code 1 if a case fails that did "
        "not fail before, or passed before and is not judged now.",
    )
    diff.add_argument("before", metavar="BEFORE.jsonl", help="the results of the earlier run")
    diff.add_argument("after", metavar="AFTER.jsonl", help="the results of the later run")
    diff.add_argument(
        "--grown",
        type=_FACTOR,
        default=2.0,
        metavar="FACTOR",
        help="list cases whose error ratio is this many times as large (default: 2)",
    )
    diff.add_argument(
        "--slower",
        type=_FACTOR,
        default=1.5,
        metavar="FACTOR",
        help="list cases that take this many times as long (default: 1.5)",
    )
    diff.add_argument("--all", action="store_true", help="list every case, not 20 of each kind")
    diff.set_defaults(command="results:diff")

    report = commands.add_parser(
        "report",
        help="write the report of runs as one HTML file",
        description="Write one HTML file that needs no network: the matrix as heat maps, a page "
        "for each fault with a picture of its wrong elements, distributions of errors, coverage of "
        "axes, times, the progress of searches, and benchmarks.",
    )
    report.add_argument(
        "results",
        nargs="*",
        metavar="RESULTS",
        help="results files of `run` or `fuzz` (.jsonl), and of `bench` (.json); default: the last "
        "run",
    )
    report.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="(default: report.html)"
    )
    report.set_defaults(command="report:report")

    history = commands.add_parser(
        "history",
        help="show the runs of a folder over time",
        description="Print the runs of a folder with their failures, and cases whose outcome "
        "changes from run to run. The results are kept in history.sqlite beside them.",
    )
    history.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="the folder of the results files (default: that of the project)",
    )
    history.add_argument(
        "--last", type=Whole(1), default=20, metavar="N", help="runs (default: 20)"
    )
    history.add_argument(
        "--case", metavar="SPEC.yaml::ID", help="print the results of one case in all runs"
    )
    history.add_argument(
        "--sql", metavar="QUERY", help="print the rows of a query over the tables runs and cases"
    )
    history.set_defaults(command="history:history")


def add_ci_options(command: argparse._ActionsContainer) -> None:
    """Add `--junitxml` and `--github`."""
    command.add_argument("--junitxml", metavar="FILE", help="also write a JUnit report")
    command.add_argument(
        "--github",
        action="store_true",
        help="also print GitHub's annotations, and append to the job summary",
    )


def add_machine_commands(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    """Add `cache`, `doctor`, `copy-spec` and `completion`."""
    cache = commands.add_parser(
        "cache",
        help="show the caches on disk, and bound their size",
        description="Show what the caches on disk hold: covering arrays, interpreted programs, "
        "assembled kernels, and TileLang's compiled kernels, which run, fuzz and bench share.",
    )
    cache.add_argument(
        "--prune",
        metavar="SIZE",
        help="remove what was used longest ago until SIZE is left, such as 500M or 10G",
    )
    cache.set_defaults(command="cache:cache")

    doctor = commands.add_parser(
        "doctor",
        help="show what this machine has, what runs where, and what is missing",
        description="Print software, GPUs, CUDA toolkit, caches, specs and backends, with a remedy "
        "for what is missing. Exit code 1 if there is a problem.",
    )
    doctor.set_defaults(command="doctor:doctor")

    copy = commands.add_parser(
        "copy-spec",
        help="copy built-in specs into a project, or list them",
        description="Copy specs of tlmatrix's own kernels, which the package carries, as a start "
        "for your own. Without a name, list them.",
    )
    copy.add_argument("names", nargs="*", metavar="NAME", help="such as gqa_varlen")
    copy.add_argument(
        "-o",
        "--output",
        default="specs",
        metavar="PATH",
        help="a folder, or for one spec a .yaml file (default: specs)",
    )
    copy.set_defaults(command="builtin:copy_spec")

    completion = commands.add_parser(
        "completion",
        help="print the script with which a shell completes commands",
        description="Print a script with which a shell completes commands, options and files: "
        "tlmatrix completion bash > ~/.local/share/bash-completion/completions/tlmatrix",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(command="completion:completion")
