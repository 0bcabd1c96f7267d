"""What the command line takes: each command with its arguments, their defaults and their help.

Nothing heavy is imported, so that `--help` is quick; a command is named, not imported.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tlmatrix.config import BACKENDS, UNSUPPORTED
from tlmatrix.exit_codes import ExitCode
from tlmatrix.words import guess

if TYPE_CHECKING:
    from collections.abc import Sequence

    _Commands = argparse._SubParsersAction["_Parser"]  # noqa: SLF001 - its only name

__all__ = ["LAST_RUN", "command_line"]

LAST_RUN = ""
"""The value of `--resume` without a file."""


class _Parser(argparse.ArgumentParser):
    """Refuses unknown arguments with the usage of its own command; paths may follow options."""

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: Any = None,  # noqa: ANN401 - as argparse has it
    ) -> tuple[Any, list[str]]:
        """What argparse reads, and nothing left over."""
        parsed, extras = super().parse_known_args(args, namespace)
        if hasattr(parsed, "paths") and not any(word.startswith("-") for word in extras):
            parsed.paths += extras
        elif extras:
            unknown = next((word for word in extras if word.startswith("-")), extras[0])
            near = guess(unknown, [name for name in self._option_string_actions if len(name) > 4])
            meant = f"; did you mean {near}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(extras)}{meant}")
        return parsed, []


def command_line() -> argparse.ArgumentParser:
    """The parser of `tlmatrix`; what it reads holds in `command` the function that runs it.

    As `module:function`, in `tlmatrix.commands`: every command takes what was read and the
    project's configuration, and returns an `ExitCode`.
    """
    parser = _Parser(
        prog="tlmatrix",
        description="A test matrix for TileLang kernels: one YAML spec, every test.",
        epilog=f"exit codes:\n{ExitCode.table()}\n\nDefaults stand in [tool.tlmatrix] of "
        "pyproject.toml:\nbackend, tier, seed, specs, results, timeout, coverage, unsupported.",
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
    _add_bench(commands)
    _add_new(commands)
    _add_exec(commands)
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of specs, for editors",
        description="Print the JSON Schema of specs; editors complete and check by it.",
    )
    schema.set_defaults(command="schema:schema")
    return parser


def _add_run(commands: _Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run the cases of specs, and show what is wrong",
        description="Run the cases of specs: progress, then a table a spec and the findings.",
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
        default="auto",
        metavar="N",
        help="worker processes; auto (the default): one a core, or none where they would take "
        "longer to start than they save; 0: everything in this process",
    )
    run.add_argument(
        "--arch",
        action="append",
        metavar="ARCH",
        help="with --backend compile: assemble for sm_90a, say, and not for all that the specs "
        "name; may be given again",
    )
    run.add_argument(
        "-k",
        dest="select",
        default="",
        metavar="EXPRESSION",
        help='only cases that match: "causal=true and not dtype=float16", part of an id or of a '
        "spec's file name, or a kind of case: invalid, fuzz, regression, extra",
    )
    run.add_argument(
        "--lf",
        "--last-failed",
        dest="last_failed",
        action="store_true",
        help="only cases that failed in the last run; all, if none did",
    )
    run.add_argument(
        "--no-fuzz", action="store_true", help="leave out the cases that the tier draws at random"
    )
    run.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    run.add_argument(
        "-q", "--quiet", action="store_true", help="print findings and the last line alone"
    )
    run.add_argument(
        "-v", "--verbose", action="store_true", help="print every case, and findings in full"
    )
    _add_keep_going(run)
    _add_results_and_timeout(run)
    run.add_argument(
        "--resume",
        nargs="?",
        const=LAST_RUN,
        metavar="FILE",
        help="go on with the run of FILE (without one, the last run), with its specs and its -k; "
        "what passed is not run again",
    )
    run.add_argument("--junitxml", metavar="FILE", help="also write a JUnit report")
    run.add_argument(
        "--coverage",
        action="store_const",
        const="table",
        help="count the kernel lines and guards that cases exercise (interpreter); show a table",
    )
    run.add_argument(
        "--no-coverage",
        dest="coverage",
        action="store_const",
        const="off",
        help="do not count them, whatever the project sets",
    )
    _add_unsupported(run)
    run.set_defaults(command="run:run")


def _add_list(commands: _Commands) -> None:
    listing = commands.add_parser(
        "list",
        help="show what would run: cases a spec, and what each rule removes",
        description="Count the cases of specs; no entry is imported.",
    )
    _add_paths(listing)
    listing.add_argument("--tier", help="quick (the default), nightly, full, or a spec's own")
    listing.add_argument("--seed", type=int, help="as for run")
    listing.add_argument("--cases", action="store_true", help="also list the id of every case")
    listing.add_argument(
        "--explain", metavar="CASE", help="say why one case is there: specs/x.yaml::ID, or an id"
    )
    listing.set_defaults(command="listing:list_cases")


def _add_check(commands: _Commands) -> None:
    check = commands.add_parser(
        "check",
        help="look for errors in specs",
        description="Print everything that is wrong with specs; no entry is imported.",
    )
    _add_paths(check)
    check.add_argument("--tier", help="the tier that must have cases (quick)")
    check.set_defaults(command="check:check")


def _add_repro(commands: _Commands) -> None:
    repro = commands.add_parser(
        "repro",
        help="run one case again, in this process, and show everything",
        description="Run one case in this process and print its findings in full.",
    )
    repro.add_argument("case", metavar="SPEC.yaml::ID", help="as a finding prints it")
    repro.add_argument(
        "--values",
        metavar="JSON",
        help="values for axes instead of an id; axes left out take their first value",
    )
    repro.add_argument("--backend", choices=BACKENDS, help="where kernels run")
    repro.add_argument("--seed", type=int, help="as for run")
    repro.add_argument(
        "-v", "--verbose", action="store_true", help="show tensors around the worst elements"
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
        help="say of each regression of specs whether it is fixed, or retire one",
        description="Run the regressions of specs: FIXED, FAILED or ERROR for each.",
    )
    _add_paths(replay)
    replay.add_argument(
        "--retire",
        metavar="ID",
        help="take this one out (SPEC.yaml::ID, or its id) if it is fixed; it stays in the file, "
        "under `retired`, and is no longer run",
    )
    replay.add_argument("--because", metavar="REASON", help="with --retire: why")
    replay.add_argument(
        "--unfixed", action="store_true", help="with --retire: even though it is not fixed"
    )
    replay.add_argument("--backend", choices=BACKENDS, help="where kernels run")
    replay.add_argument("--seed", type=int, help="as for run")
    replay.add_argument(
        "-n",
        "--workers",
        default="1",
        metavar="N",
        help="processes, which a regression may crash (1); 0 runs everything in this one",
    )
    replay.add_argument("--results", metavar="PATH", help="as for run")
    replay.add_argument("--timeout", type=float, metavar="SECONDS", help="as for run")
    replay.set_defaults(command="replay:replay")


def _add_coverage(commands: _Commands) -> None:
    coverage = commands.add_parser(
        "coverage",
        help="show what of the kernels the cases of a run exercised",
        description="Tell what the cases of a run on the interpreter exercised of their kernels, "
        "and what they never did.",
    )
    coverage.add_argument(
        "results", nargs="?", metavar="RESULTS.jsonl", help="a run (default: the last one)"
    )
    coverage.add_argument(
        "--source", action="store_true", help="show the kernels' source, annotated line by line"
    )
    coverage.add_argument(
        "--file", metavar="PART", default="", help="only files with this in their name"
    )
    coverage.set_defaults(command="coverage:coverage")


def _add_fuzz(commands: _Commands) -> None:
    fuzz = commands.add_parser(
        "fuzz",
        help="search for failing cases that no axis lists, and shrink them",
        description="Draw cases from the `fuzz` section of specs, run them, and shrink the first "
        "of each cause to the smallest case that fails alike.",
    )
    _add_paths(fuzz)
    fuzz.add_argument("--tier", help="whose kernels, and how many examples without a number here")
    fuzz.add_argument("--backend", choices=BACKENDS, help="where kernels run, as for run")
    fuzz.add_argument("--seed", type=int, help="other cases (0)")
    fuzz.add_argument("--examples", type=_count, metavar="N", help="so many of every spec")
    fuzz.add_argument(
        "--minutes", type=_minutes, metavar="M", help="as many as go, of all specs together"
    )
    fuzz.add_argument(
        "--save",
        action="store_true",
        help="append the smallest cases to `regressions` of the specs",
    )
    fuzz.add_argument(
        "-n", "--workers", default="auto", metavar="N", help="processes (auto: one a core)"
    )
    _add_results_and_timeout(fuzz)
    _add_unsupported(fuzz)
    fuzz.set_defaults(command="fuzz:fuzz")


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of examples, at least 1")
    return int(text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
    return minutes


def _add_explain(commands: _Commands) -> None:
    explain = commands.add_parser(
        "explain",
        help="show how an output element of a case came about, step by step",
        description="Run one case on the interpreter and follow one element of an output back: "
        "the block that wrote it, the turns of its loops, every statement that leads to it with "
        "its value and that of a float64 run, and the parts of the inputs it depends on. "
        "(Why a case exists says `tlmatrix list --explain`.)",
    )
    explain.add_argument("case", metavar="SPEC.yaml::ID", help="as a finding prints it")
    explain.add_argument("--values", metavar="JSON", help="as for repro")
    explain.add_argument("--tensor", metavar="NAME", help="an output or gradient")
    explain.add_argument(
        "--index",
        metavar="I,J,…",
        help="the element (default: the worst of the case's finding, else the first)",
    )
    explain.add_argument(
        "--buffer", metavar="NAME", help="follow --index of this parameter of the last kernel"
    )
    explain.add_argument("--block", metavar="I,J,…", help="of several blocks, the one to follow")
    explain.add_argument(
        "--rank", type=int, metavar="R", help="of several ranks, the one whose kernels are followed"
    )
    explain.add_argument("--seed", type=int, help="as for run")
    explain.add_argument("--full", action="store_true", help="show every turn of every loop")
    explain.add_argument(
        "--no-inputs",
        action="store_true",
        help="do not try other inputs, which runs the case often",
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
        help="time the entry of specs beside other implementations (needs a GPU)",
        description="Time the bench cases of specs: the entry and its baselines in turn, forward "
        "and backward, each with a verdict from the interval of their ratio.",
    )
    _add_paths(bench)
    bench.add_argument(
        "--case",
        action="append",
        metavar="JSON",
        help="values for axes of a case, in place of the spec's bench cases; may be given again",
    )
    bench.add_argument(
        "-k", dest="select", default="", metavar="EXPRESSION", help="as for run, of bench cases"
    )
    bench.add_argument(
        "--baseline",
        action="append",
        metavar="NAME",
        help="time this beside the entry, not what the spec names; may be given again",
    )
    bench.add_argument(
        "--against",
        metavar="FILE",
        help="compare with an earlier run of the same cases; exit 1 where this one is slower",
    )
    bench.add_argument(
        "--sweep", action="store_true", help="also time every combination of the spec's `configs`"
    )
    bench.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        metavar="S",
        help="time for each pass of a case; more narrows the intervals (2)",
    )
    bench.add_argument(
        "--margin",
        type=float,
        default=0.02,
        metavar="SHARE",
        help="a difference that does not matter (0.02)",
    )
    bench.add_argument("--output", metavar="FILE", help="store the timings here")
    bench.add_argument("--json", action="store_true", help="print them as JSON, tables to stderr")
    bench.add_argument(
        "--from", dest="show", metavar="FILE", help="show stored timings; nothing is timed"
    )
    bench.set_defaults(command="bench:bench")


def _add_new(commands: _Commands) -> None:
    new = commands.add_parser(
        "new",
        help="write a first spec for an operator or a TileLang factory, and run it",
        description="Write a first spec: of a factory by tracing it, of an operator by recording "
        "one example call on the interpreter. The module is imported, and what was written runs.",
    )
    new.add_argument("target", metavar="PACKAGE.MODULE:NAME", help="what to test")
    new.add_argument("-o", "--output", metavar="FILE", help="write here, not to the terminal")
    new.add_argument(
        "--call",
        metavar="EXPRESSION",
        help='an example call, as "f(q, k, v, cu, cu, 128)", over the names of its module (torch '
        "too) and of --script; the smaller, the better, with no two sizes alike",
    )
    new.add_argument(
        "--script",
        metavar="SCRIPT.py",
        help="a program that calls it once, or that makes the tensors of --call",
    )
    new.add_argument("--no-run", action="store_true", help="do not run what was written")
    new.set_defaults(command="new:new")


def _add_exec(commands: _Commands) -> None:
    program = commands.add_parser(
        "exec",
        help="run a script written for a GPU, unchanged, on the interpreter",
        description="Run a script as Python would, its TileLang kernels interpreted on the CPU "
        "and its cuda tensors there. No time is measured: benchmarks answer NaN.",
    )
    program.add_argument(
        "--arch", default="sm_90a", help="the architecture the device claims (sm_90a)"
    )
    program.add_argument(
        "--sms",
        type=int,
        default=8,
        metavar="N",
        help="the multiprocessors it claims; persistent kernels launch that many blocks (8)",
    )
    program.add_argument(
        "--sanitize", action="store_true", help="run the kernels under the interpreter's sanitizers"
    )
    program.add_argument(
        "--without",
        metavar="NAME,...",
        help="with --sanitize: all of them but these (docs/explanation/sanitizers.md lists "
        "them), such as unwritten for outputs whose padding nobody reads",
    )
    program.add_argument("script", metavar="SCRIPT.py", help="what to run")
    program.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments"
    )
    program.set_defaults(command="exec:execute")


def _add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="specs, or folders of them (default: specs)"
    )


def _add_results_and_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", metavar="PATH", help="folder for results files, or a .jsonl file"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="a case may take this long"
    )


def _add_unsupported(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unsupported",
        choices=UNSUPPORTED,
        help="cases whose kernels the interpreter does not model: skipped (tell) or errors (fail)",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", help="which cases: quick (the default), nightly, full, …")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        help="where kernels run; auto is cuda where there is a GPU, else the interpreter; compile "
        "runs none, but assembles each for the architectures of its spec",
    )
    parser.add_argument(
        "--seed", type=int, help="other input data and other samples (0: each case's own seed)"
    )


def _version() -> str:
    from importlib.metadata import version

    return version("tlmatrix")
