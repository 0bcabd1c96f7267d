"""The parser of the command line: the arguments of every command, with defaults and help.

Commands are named and not imported, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tlmatrix.commands.record_arguments import (
    add_ci_options,
    add_machine_commands,
    add_record_commands,
)
from tlmatrix.config import BACKENDS, UNSUPPORTED
from tlmatrix.exit_codes import ExitCode
from tlmatrix.option_values import SEED, TIMEOUT, Number, Whole, WorkerProcesses
from tlmatrix.words import guess, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    _Commands = argparse._SubParsersAction["_Parser"]  # noqa: SLF001 - its only name

LAST_RUN = ""
"""The value of `--resume` without a file."""


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

    The namespace that it returns has in `command` the function of the command, as
    `module:function` in `tlmatrix.commands`. Such a function takes the namespace and the
    project's `Config`, and returns an `ExitCode`.
    """
    parser = _Parser(
        prog="tlmatrix",
        description="Test TileLang kernels on a matrix of cases that a YAML spec declares.",
        epilog=f"exit codes:\n{ExitCode.table()}\n\n[tool.tlmatrix] in pyproject.toml "
        "sets defaults:\nbackend, tier, seed, specs, results, timeout, coverage, unsupported.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_list(commands)
    _add_check(commands)
    _add_repro(commands)
    _add_fuzz(commands)
    _add_replay(commands)
    _add_explain(commands)
    _add_coverage(commands)
    _add_merge(commands)
    add_record_commands(commands)
    _add_bench(commands)
    _add_new(commands)
    _add_exec(commands)
    add_machine_commands(commands)
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of specs, for editors",
        description="Print the JSON Schema of specs, with which editors complete and check them.",
    )
    schema.set_defaults(command="schema:schema")
    return parser


def _add_run(commands: _Commands) -> None:
    run = commands.add_parser(
        "run",
        usage="%(prog)s [options] [PATH ...]",
        help="run the cases of specs and report findings",
        description="Run the cases of specs. Prints progress, a table of specs, and the findings.",
    )
    run.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="specs, folders of them, or cases as SPEC.yaml::ID (default: specs)",
    )
    _add_common(run)
    run.add_argument(
        "-n",
        "--workers",
        type=WorkerProcesses(),
        default="auto",
        metavar="N",
        help="processes; auto (default): one per core, or none for short runs; 0: this one",
    )
    run.add_argument(
        "-k",
        dest="select",
        default="",
        metavar="EXPR",
        help='only matching cases: "causal=true and not dtype=int8", part of an id or of the '
        "spec's name, or a kind: invalid, fuzz, regression, extra",
    )
    run.add_argument(
        "--lf",
        "--last-failed",
        dest="last_failed",
        action="store_true",
        help="only cases that failed in the last run; all, if none did",
    )
    run.add_argument(
        "--resume",
        nargs="?",
        const=LAST_RUN,
        metavar="FILE",
        help="continue the run of FILE (default: the last) with its specs and its -k",
    )
    run.add_argument(
        "--builtin",
        action="append",
        default=[],
        metavar="NAME",
        help="a spec of tlmatrix's own kernels, as gqa_varlen; repeatable",
    )
    run.add_argument("--no-fuzz", action="store_true", help="leave out generated cases")
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="print cases, kernels and expected times; run nothing",
    )
    run.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    _add_keep_going(run)
    _add_results_and_timeout(run)
    _add_unsupported(run)
    run.add_argument(
        "--coverage",
        action="store_const",
        const="table",
        help="print the kernel lines and guards that cases exercise (interpreter)",
    )
    run.add_argument(
        "--no-coverage",
        dest="coverage",
        action="store_const",
        const="off",
        help="do not, whatever pyproject.toml sets",
    )
    run.add_argument(
        "-q", "--quiet", action="store_true", help="print only findings and the last line"
    )
    run.add_argument(
        "-v", "--verbose", action="store_true", help="print every case, and findings in full"
    )
    _add_machine_options(run)
    run.set_defaults(command="run:run")


def _add_machine_options(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("machines and CI")
    group.add_argument(
        "--arch",
        action="append",
        metavar="ARCH",
        help="with --backend compile: only this architecture, as sm_90a; repeatable",
    )
    group.add_argument(
        "--keep",
        metavar="KINDS",
        help="with --backend compile: keep ir,cuda,ptx (or some) beside the results",
    )
    group.add_argument(
        "--compute-sanitizer",
        metavar="TOOLS",
        help="on a GPU, run each case again under memcheck,racecheck,initcheck,synccheck (or "
        "some), or all",
    )
    group.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run on a Ray cluster (default: that of RAY_ADDRESS, else a new one here)",
    )
    group.add_argument(
        "--shard",
        metavar="I/N",
        help="run part I of N; `tlmatrix merge` puts the results together",
    )
    group.add_argument(
        "--times",
        metavar="FILE",
        help="with --shard: results whose times make parts equally long (default: the last run; "
        "'': none)",
    )
    add_ci_options(group)


def _add_list(commands: _Commands) -> None:
    listing = commands.add_parser(
        "list",
        help="list the cases of specs",
        description="Count the cases of specs, and those that each constraint removes. "
        "Imports no entry.",
    )
    _add_paths(listing)
    listing.add_argument("--tier", help="quick (the default), nightly, full, or a tier of the spec")
    listing.add_argument("--seed", type=SEED, metavar="N", help="as for run")
    listing.add_argument("--cases", action="store_true", help="also print the id of every case")
    listing.add_argument(
        "--explain", metavar="CASE", help="print why a case is in the tier: SPEC.yaml::ID, or an id"
    )
    listing.set_defaults(command="listing:list_cases")


def _add_check(commands: _Commands) -> None:
    check = commands.add_parser(
        "check",
        help="check specs for errors",
        description="Print every error in specs with its line and column. Imports no entry.",
    )
    _add_paths(check)
    check.add_argument("--tier", help="the tier that must have cases (default: quick)")
    check.set_defaults(command="check:check")


def _add_repro(commands: _Commands) -> None:
    repro = commands.add_parser(
        "repro",
        help="run one case again and print its findings in full",
        description="Run one case in this process and print its findings in full.",
    )
    repro.add_argument("case", metavar="SPEC.yaml::ID", help="as a finding prints it")
    repro.add_argument(
        "--values",
        metavar="JSON",
        help="values for axes instead of an id; other axes take their first value",
    )
    repro.add_argument("--backend", choices=BACKENDS, metavar="NAME", help="as for run")
    repro.add_argument("--seed", type=SEED, metavar="N", help="as for run")
    repro.add_argument(
        "-v", "--verbose", action="store_true", help="print tensors around the worst elements"
    )
    _add_keep_going(repro)
    repro.set_defaults(command="repro:repro")


def _add_keep_going(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--keep-going",
        action="store_true",
        help="after wrong numbers, judge relations and agreements too",
    )


def _add_replay(commands: _Commands) -> None:
    replay = commands.add_parser(
        "replay",
        help="run the regressions of specs, or retire one",
        description="Run the regressions of specs, and print FIXED, FAILED or ERROR for each.",
    )
    _add_paths(replay)
    replay.add_argument(
        "--retire",
        metavar="ID",
        help="move this regression (SPEC.yaml::ID, or its id) to `retired` if it is fixed; it no "
        "longer runs",
    )
    replay.add_argument("--because", metavar="REASON", help="the reason, required with --retire")
    replay.add_argument(
        "--unfixed", action="store_true", help="with --retire: even if it is not fixed"
    )
    replay.add_argument("--backend", choices=BACKENDS, metavar="NAME", help="as for run")
    replay.add_argument("--seed", type=SEED, metavar="N", help="as for run")
    replay.add_argument(
        "-n",
        "--workers",
        type=WorkerProcesses(),
        default="1",
        metavar="N",
        help="worker processes (default: 1); 0: run in this process, which a crash ends",
    )
    replay.add_argument("--results", metavar="PATH", help="as for run")
    replay.add_argument("--timeout", type=TIMEOUT, metavar="SECONDS", help="as for run")
    replay.set_defaults(command="replay:replay")


def _add_coverage(commands: _Commands) -> None:
    coverage = commands.add_parser(
        "coverage",
        help="show which kernel lines the cases of a run exercised",
        description="Print the lines, guards and loop trip counts of kernels that the cases of a "
        "run on the interpreter exercised, and those that they did not.",
    )
    coverage.add_argument(
        "results",
        nargs="?",
        metavar="RESULTS.jsonl",
        help="the results file of a run (default: the last run)",
    )
    coverage.add_argument(
        "--source",
        action="store_true",
        help="print the kernels' source with the counts of every line",
    )
    coverage.add_argument(
        "--file", metavar="PART", default="", help="only files with this in their name"
    )
    coverage.set_defaults(command="coverage:coverage")


def _add_merge(commands: _Commands) -> None:
    merge = commands.add_parser(
        "merge",
        help="put the results of all shards of a run into one file",
        description="Check that the results of all shards of one plan are there and complete, and "
        "write them to one results file.",
    )
    merge.add_argument(
        "paths", nargs="+", metavar="DIR", help="folders of results files, or the files"
    )
    merge.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the results file to write"
    )
    merge.set_defaults(command="merge:merge")


def _add_fuzz(commands: _Commands) -> None:
    fuzz = commands.add_parser(
        "fuzz",
        usage="%(prog)s [options] [PATH ...]",
        help="generate cases, search for failures, and shrink them",
        description="Generate cases from the `fuzz` section of specs, run them, and shrink the "
        "first failure of each cause to the smallest case that fails in the same way.",
    )
    _add_paths(fuzz)
    fuzz.add_argument(
        "--tier", help="the tier whose values and number of examples apply (default: quick)"
    )
    fuzz.add_argument("--backend", choices=BACKENDS, metavar="NAME", help="as for run")
    fuzz.add_argument("--seed", type=SEED, metavar="N", help="generate other cases (default: 0)")
    fuzz.add_argument("--examples", type=Whole(1), metavar="N", help="examples for every spec")
    fuzz.add_argument(
        "--minutes",
        type=Number("a number of minutes", 0, 1_000_000, above=True),
        metavar="M",
        help="time for all specs together, instead of a number of examples",
    )
    fuzz.add_argument(
        "--save",
        action="store_true",
        help="append the smallest cases to `regressions` of the specs",
    )
    fuzz.add_argument(
        "-n",
        "--workers",
        type=WorkerProcesses(1),
        default="auto",
        metavar="N",
        help="worker processes (default: one per core)",
    )
    _add_results_and_timeout(fuzz)
    _add_unsupported(fuzz)
    group = fuzz.add_argument_group("machines and CI")
    group.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="search on a Ray cluster, as for run; -n: tasks (default: one for each GPU or CPU)",
    )
    add_ci_options(group)
    fuzz.set_defaults(command="fuzz:fuzz")


def _add_explain(commands: _Commands) -> None:
    explain = commands.add_parser(
        "explain",
        help="show how one output element of a case was computed",
        description="Run one case on the interpreter and trace one element of an output back to "
        "the inputs: the block that wrote it, the iterations of its loops, every statement that "
        "leads to it with its value and that of a float64 run, and the parts of the inputs that it "
        "depends on. (`tlmatrix list --explain` prints why a case is in a tier.)",
    )
    explain.add_argument("case", metavar="SPEC.yaml::ID", help="as a finding prints it")
    explain.add_argument("--values", metavar="JSON", help="as for repro")
    explain.add_argument(
        "--tensor", metavar="NAME", help="the output or gradient (default: that of the finding)"
    )
    explain.add_argument(
        "--index",
        metavar="I,J,…",
        help="the element (default: the worst one of the finding, else the first)",
    )
    explain.add_argument(
        "--buffer",
        metavar="NAME",
        help="take --index in this parameter of the last kernel that writes it",
    )
    explain.add_argument(
        "--block", metavar="I,J,…", help="if several blocks wrote the element, the one to follow"
    )
    explain.add_argument(
        "--rank",
        type=Whole(),
        metavar="R",
        help="of several ranks, the one whose kernels to follow",
    )
    explain.add_argument("--seed", type=SEED, metavar="N", help="as for run")
    explain.add_argument("--full", action="store_true", help="print every iteration of every loop")
    explain.add_argument(
        "--no-inputs",
        action="store_true",
        help="do not try other inputs, which runs the case many times",
    )
    explain.add_argument(
        "--picture",
        metavar="FILE.svg",
        help="draw which block wrote which part of the output, and what each block read",
    )
    explain.set_defaults(command="explain:explain")


def _add_bench(commands: _Commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="time entries beside other implementations, on a GPU",
        description="Time the bench cases of specs on a GPU: the entry and its baselines in turn, "
        "forward and backward. The verdict comes from the confidence interval of their ratio.",
    )
    _add_paths(bench)
    bench.add_argument(
        "--case",
        action="append",
        metavar="JSON",
        help="values for axes of a case, in place of the spec's bench cases; repeatable",
    )
    bench.add_argument(
        "-k", dest="select", default="", metavar="EXPRESSION", help="as for run, over bench cases"
    )
    bench.add_argument(
        "--baseline",
        action="append",
        metavar="NAME",
        help="time this in place of the spec's baselines; repeatable",
    )
    bench.add_argument(
        "--against",
        metavar="FILE",
        help="compare with an earlier run of the same cases; exit code 1 if an entry is slower",
    )
    bench.add_argument(
        "--sweep", action="store_true", help="also time every combination of the spec's `configs`"
    )
    bench.add_argument(
        "--seconds",
        type=Number("a number of seconds", 0, 100_000, above=True),
        default=2.0,
        metavar="S",
        help="time for each pass of a case (default: 2); more narrows the intervals",
    )
    bench.add_argument(
        "--margin",
        type=Number("a share", 0, 1),
        default=0.02,
        metavar="SHARE",
        help="the largest difference that counts as none (default: 0.02)",
    )
    bench.add_argument("--output", metavar="FILE", help="store the timings here")
    bench.add_argument(
        "--json", action="store_true", help="print the timings as JSON, the tables on stderr"
    )
    bench.add_argument(
        "--from", dest="show", metavar="FILE", help="print stored timings; nothing is timed"
    )
    bench.set_defaults(command="bench:bench")


def _add_new(commands: _Commands) -> None:
    new = commands.add_parser(
        "new",
        help="write a first spec for an operator or a factory",
        description="Write a first spec and run it. A TileLang factory is traced; an operator is "
        "called once on the interpreter and its calls are recorded. Imports the module.",
    )
    new.add_argument("target", metavar="PACKAGE.MODULE:NAME", help="the factory or operator")
    new.add_argument("-o", "--output", metavar="FILE", help="write here, not to the terminal")
    new.add_argument(
        "--call",
        metavar="EXPRESSION",
        help='an example call, such as "f(q, k, v, cu, cu, 128)", over the names of the module, '
        "torch, and --script; small, with no two sizes alike",
    )
    new.add_argument(
        "--script",
        metavar="SCRIPT.py",
        help="a program that calls the operator once, or makes the tensors of --call",
    )
    new.add_argument("--no-run", action="store_true", help="do not run the spec")
    new.set_defaults(command="new:new")


def _add_exec(commands: _Commands) -> None:
    program = commands.add_parser(
        "exec",
        help="run a GPU script or module, unchanged, on the interpreter",
        description="Run a script like `python SCRIPT.py`, or a module like `python -m MODULE`, "
        "with TileLang kernels and cuda tensors on the CPU. Nothing is timed: benchmarks call "
        "their function once and return NaN.",
    )
    program.add_argument(
        "--arch",
        default="sm_90a",
        help="the architecture of the simulated device (default: sm_90a)",
    )
    program.add_argument(
        "--sms",
        type=Whole(1, 65536),
        default=8,
        metavar="N",
        help="its multiprocessors (default: 8); persistent kernels launch that many blocks",
    )
    program.add_argument(
        "--sanitize", action="store_true", help="run the kernels with the interpreter's sanitizers"
    )
    program.add_argument(
        "--without",
        metavar="NAME,...",
        help="with --sanitize: all sanitizers but these (docs/explanation/sanitizers.md lists "
        "them), such as unwritten if the padding of outputs stays unwritten",
    )
    program.add_argument(
        "--lower",
        action="store_true",
        help="lower every kernel with TileLang as well, so that errors of its compiler are raised",
    )
    program.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="PROGRAM is a module, as in `python -m`: `tlmatrix exec -m pytest test_kernel.py`",
    )
    program.add_argument("script", metavar="PROGRAM", help="the script, or with -m the module")
    program.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the program's own arguments"
    )
    program.set_defaults(command="exec:execute")


def _add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="specs, or folders of them (default: specs)"
    )


def _add_results_and_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", metavar="PATH", help="folder of the results files, or a .jsonl file"
    )
    parser.add_argument(
        "--timeout", type=TIMEOUT, metavar="SECONDS", help="time limit of a case; 0: none"
    )


def _add_unsupported(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unsupported",
        choices=UNSUPPORTED,
        help="kernels that the interpreter does not model",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tier", metavar="NAME", help="quick (the default), nightly, full, or a tier of the spec"
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        metavar="NAME",
        help="auto (cuda if there is a GPU, else interpreter), cuda, interpreter, processes (ranks "
        "on CPUs), or compile (run nothing)",
    )
    parser.add_argument(
        "--seed", type=SEED, metavar="N", help="other data and samples (default: 0)"
    )


def _version() -> str:
    from importlib.metadata import version

    return version("tlmatrix")
