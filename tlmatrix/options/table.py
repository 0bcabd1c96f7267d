"""The table of options and commands.

An option that several commands have, or that code reads by its name (`options[SEED]`), is a
constant; the others stand where their command is declared. Commands are named and not imported, so
that `--help` is fast.

`RunOptions` are the values of the options that hold for a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tlmatrix.options.option import (
    Command,
    Option,
    number,
    one_of,
    paths,
    text,
    whole,
    worker_processes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


LAST_RUN = ""
"""The value of `--resume` without a file."""
_MACHINES = "machines and CI"

BACKENDS = ("auto", "cuda", "interpreter", "lowered", "processes", "compile")
"""Names of backends."""

# Options of a run ------------------------------------------------------------------------------

TIER = Option(
    "--tier TIER",
    "quick (the default), nightly, full, or a tier of the spec",
    text("the name of a tier"),
    default="quick",
    toml=True,
    pytest="which cases: quick (the default), nightly, full, or a tier of the spec",
)
BACKEND = Option(
    "--backend NAME",
    "auto (cuda if there is a GPU, else interpreter), cuda, interpreter, processes (ranks on "
    "CPUs), or compile (run nothing)",
    one_of(*BACKENDS),
    default="auto",
    toml=True,
    variable="TLMATRIX_BACKEND",
    pytest="where kernels run; auto: cuda if there is a GPU, else interpreter; compile: lower "
    "and assemble them, and run nothing",
)
SEED = Option(
    "--seed N",
    "other data and samples (default: 0)",
    whole(),
    default=0,
    toml=True,
    pytest="other input data and samples (default: 0, the seed of each case)",
)
SPECS = Option("", "where specs are", paths(), default=("specs",), name="specs", toml=True)
RESULTS = Option(
    "--results PATH",
    "folder of the results files, or a .jsonl file",
    text("a folder"),
    default=".tlmatrix",
    toml=True,
    pytest="folder for results files, or a .jsonl file",
)
TIMEOUT = Option(
    "--timeout SECONDS",
    "time limit of a case; 0: none",
    number("a number of seconds", 0, 10_000_000, note="; 0: no limit"),
    default=300.0,
    toml=True,
)
UNSUPPORTED = Option(
    "--unsupported",
    "kernels that the interpreter does not model",
    one_of("skip", "fail"),
    default="skip",
    toml=True,
    pytest="skip cases with kernels that the interpreter does not support (the default), or fail "
    "them",
)
COVERAGE = Option(
    "--coverage",
    "print the kernel lines and guards that cases exercise (interpreter)",
    one_of("off", "summary", "table"),
    default="off",
    const="table",
    toml=True,
    pytest="count the kernel lines and guards that cases exercise on the interpreter, and print a "
    "line (summary) or a table (default: off)",
)
KEEP_GOING: Option[bool] = Option(
    "--keep-going",
    "after wrong numbers, judge relations and agreements too",
    of_run=True,
    pytest="after wrong numbers, judge relations and agreements too",
)
NO_FUZZ: Option[bool] = Option(
    "--no-fuzz",
    "leave out generated cases",
    of_run=True,
    pytest="leave out the generated cases of the tier (`fuzz.examples` of a spec)",
)
ONLY: Option[str | None] = Option(
    "",
    "only the regressions of specs",
    one_of("regressions"),
    name="only",
    of_run=True,
    pytest="only the regressions of specs",
)
RESUME: Option[str | None] = Option(
    "--resume [FILE]",
    "continue the run of FILE (default: the last) with its specs and its -k",
    const=LAST_RUN,
    of_run=True,
    pytest="continue the run of this results file; passed cases are not repeated",
)
ARCH: Option[Sequence[str]] = Option(
    "--arch ARCH",
    "trace kernels for this architecture only, as sm_90a; repeatable",
    default=(),
    repeatable=True,
    group=_MACHINES,
    of_run=True,
    pytest="with --tlmatrix-backend compile or interpreter: trace kernels for this architecture "
    "only, such as sm_90a; repeatable",
)
KEEP: Option[str | None] = Option(
    "--keep KINDS",
    "with --backend compile: keep ir,cuda,ptx (or some) beside the results",
    group=_MACHINES,
    of_run=True,
    pytest="with the backend compile, keep ir,cuda,ptx (or some) of each kernel beside the results",
)
COMPUTE_SANITIZER: Option[str | None] = Option(
    "--compute-sanitizer TOOLS",
    "on a GPU, run each case again under memcheck,racecheck,initcheck,synccheck (or some), or all",
    group=_MACHINES,
    of_run=True,
    pytest="on a GPU, run each case again under tools of compute-sanitizer: memcheck,racecheck,"
    "initcheck,synccheck, or all",
)
PERTURB: Option[int | None] = Option(
    "--perturb SEED",
    "on a GPU, delay kernels at their synchronization points by this seed, which shows races",
    whole(most=2**31 - 1),
    of_run=True,
    pytest="on a GPU, delay kernels at their synchronization points by this seed",
)
SHARD: Option[str | None] = Option(
    "--shard I/N",
    "run part I of N; `tlmatrix merge` puts the results together",
    group=_MACHINES,
    of_run=True,
    pytest="run part I of N of the cases; cases that share kernels stay together",
)
TIMES: Option[str | None] = Option(
    "--times FILE",
    "with --shard: results whose times make parts equally long (default: the last run; '': none)",
    group=_MACHINES,
    of_run=True,
    pytest="with --tlmatrix-shard: the results file with recorded times, the same for all shards "
    "(default: the last run)",
)

# Other options of several commands --------------------------------------------------------------

_PATHS: Option[Any] = Option("paths PATH*", "specs, or folders of them (default: specs)")
_CASE: Option[Any] = Option("case SPEC.yaml::ID", "as a finding prints it")
_VALUES: Option[Any] = Option("--values JSON", "as for repro")
_SELECT = Option(
    "-k EXPR",
    'only matching cases: "causal=true and not dtype=int8", part of an id or of the spec\'s name, '
    "or a kind: invalid, fuzz, regression, extra",
    default="",
    name="select",
)
_WORKERS = Option(
    "-n --workers N",
    "processes; auto (default): one per core, or none for short runs; 0: this one",
    worker_processes(),
    default="auto",
)
_QUIET: Option[Any] = Option("-q --quiet", "print only findings and the last line")
_VERBOSE: Option[Any] = Option("-v --verbose", "print every case, and findings in full")
_RAY: Option[Any] = Option(
    "--ray [ADDRESS]",
    "run on a Ray cluster (default: that of RAY_ADDRESS, else a new one here)",
    const="",
    group=_MACHINES,
)
_JUNITXML: Option[Any] = Option("--junitxml FILE", "also write a JUnit report", group=_MACHINES)
_GITHUB: Option[Any] = Option(
    "--github",
    "also print GitHub's annotations, and append to the job summary",
    group=_MACHINES,
)


def _as_for_run(*options: Option[Any]) -> list[Option[Any]]:
    return [replace(option, help="as for run") for option in options]


# Commands ---------------------------------------------------------------------------------------

COMMANDS: dict[str, Command] = {}
"""The commands, in the order of `tlmatrix --help`."""


def _command(
    name: str,
    help: str,  # noqa: A002 - as in argparse
    description: str,
    *options: Option[Any],
    target: str = "",
    caches: bool = False,
    usage: str | None = None,
    words: bool = False,
) -> None:
    """Declare the command `name`, by default the function `name` of the module `name`."""
    target = target or f"{name}:{name}"
    COMMANDS[name] = Command(target, help, description, options, caches, usage, words)


_command(
    "run",
    "run the cases of specs and report findings",
    "Run the cases of specs. Prints progress, a table of specs, and the findings.",
    replace(_PATHS, help="specs, folders of them, or cases as SPEC.yaml::ID (default: specs)"),
    replace(TIER, usage="--tier NAME"),
    BACKEND,
    SEED,
    _WORKERS,
    _SELECT,
    Option(
        "--lf --last-failed",
        "only cases that failed in the last run; all, if none did",
        name="last_failed",
    ),
    RESUME,
    Option(
        "--builtin NAME",
        "a spec of tlmatrix's own kernels, as gqa_varlen; repeatable",
        repeatable=True,
        default=[],
    ),
    NO_FUZZ,
    Option("--dry-run", "print cases, kernels and expected times; run nothing"),
    Option("-x --exitfirst", "stop at the first failure"),
    KEEP_GOING,
    RESULTS,
    TIMEOUT,
    UNSUPPORTED,
    COVERAGE,
    Option("--no-coverage", "do not, whatever pyproject.toml sets", const="off", name="coverage"),
    _QUIET,
    _VERBOSE,
    ARCH,
    KEEP,
    COMPUTE_SANITIZER,
    PERTURB,
    _RAY,
    SHARD,
    TIMES,
    _JUNITXML,
    _GITHUB,
    caches=True,
    usage="%(prog)s [options] [PATH ...]",
)
_command(
    "list",
    "list the cases of specs",
    "Count the cases of specs, and those that each constraint removes. Imports no entry.",
    _PATHS,
    TIER,
    *_as_for_run(SEED),
    Option("--cases", "also print the id of every case"),
    Option("--explain CASE", "print why a case is in the tier: SPEC.yaml::ID, or an id"),
    target="specs:list_cases",
    caches=True,
)
_command(
    "check",
    "check specs for errors",
    "Print every error in specs with its line and column. Imports no entry.",
    _PATHS,
    replace(TIER, help="the tier that must have cases (default: quick)"),
    target="specs:check",
)
_command(
    "repro",
    "run one case again and print its findings in full",
    "Run one case in this process and print its findings in full.",
    _CASE,
    replace(_VALUES, help="values for axes instead of an id; other axes take their first value"),
    *_as_for_run(BACKEND, SEED, ARCH),
    replace(_VERBOSE, help="print tensors around the worst elements"),
    KEEP_GOING,
    PERTURB,
    target="cases:repro",
    caches=True,
)
_command(
    "fuzz",
    "generate cases, search for failures, and shrink them",
    "Generate cases from the `fuzz` section of specs, run them, and shrink the first failure of "
    "each cause to the smallest case that fails in the same way.",
    _PATHS,
    replace(TIER, help="the tier whose values and number of examples apply (default: quick)"),
    *_as_for_run(BACKEND),
    replace(SEED, help="generate other cases (default: 0)"),
    Option("--examples N", "examples for every spec", whole(1)),
    Option(
        "--minutes M",
        "time for all specs together, instead of a number of examples",
        number("a number of minutes", 0, 1_000_000, above=True),
    ),
    Option("--save", "append the smallest cases to `regressions` of the specs"),
    replace(_WORKERS, help="worker processes (default: one per core)", kind=worker_processes(1)),
    RESULTS,
    TIMEOUT,
    UNSUPPORTED,
    PERTURB,
    replace(
        _RAY,
        help="search on a Ray cluster, as for run; -n: tasks (default: one for each GPU or CPU)",
    ),
    _JUNITXML,
    _GITHUB,
    caches=True,
    usage="%(prog)s [options] [PATH ...]",
)
_command(
    "prove",
    "prove kernels free of races and other faults, for all sizes",
    "Prove properties of the kernels that specs launch, for all values of their symbolic dims and "
    "integer tensors: no races between blocks, rows of a block's own sequence, every element "
    "written, indices in bounds. What a case on the interpreter refutes is a finding.",
    replace(_PATHS, help="specs, folders of them, or cases as SPEC.yaml::ID (default: specs)"),
    replace(TIER, help="the tier whose kernels are proven (default: smoke)", default="smoke"),
    Option("--arch ARCH", "trace kernels for it (default: for each of the spec)"),
    replace(_WORKERS, help="processes (default: one per core)", kind=worker_processes(1)),
    replace(_VERBOSE, help="print the facts of each proof"),
    Option("--json FILE", "also write all answers as JSON"),
    caches=True,
    usage="%(prog)s [options] [PATH ...]",
)
_command(
    "replay",
    "run the regressions of specs",
    "Run the regressions of specs, and print FIXED, FAILED or ERROR for each.",
    _PATHS,
    *_as_for_run(BACKEND, SEED),
    replace(
        _WORKERS,
        help="worker processes (default: 1); 0: run in this process, which a crash ends",
        default="1",
    ),
    *_as_for_run(RESULTS, TIMEOUT),
    caches=True,
)
_command(
    "explain",
    "show how one output element of a case was computed",
    "Run one case on the interpreter and trace one element of an output back to the inputs: the "
    "block that wrote it, the iterations of its loops, every statement that leads to it with its "
    "value and that of a float64 run, and the parts of the inputs that it depends on. (`tlmatrix "
    "list --explain` prints why a case is in a tier.)",
    _CASE,
    _VALUES,
    Option("--tensor NAME", "the output or gradient (default: that of the finding)"),
    Option("--index I,J,…", "the element (default: the worst one of the finding, else the first)"),
    Option("--buffer NAME", "take --index in this parameter of the last kernel that writes it"),
    Option("--block I,J,…", "if several blocks wrote the element, the one to follow"),
    Option("--rank R", "of several ranks, the one whose kernels to follow", whole()),
    *_as_for_run(SEED),
    Option("--full", "print every iteration of every loop"),
    Option("--no-inputs", "do not try other inputs, which runs the case many times"),
    target="cases:explain",
    caches=True,
)
_command(
    "coverage",
    "show which kernel lines the cases of a run exercised",
    "Print the lines, guards and loop trip counts of kernels that the cases of a run on the "
    "interpreter exercised, and those that they did not.",
    Option("results RESULTS.jsonl?", "the results file of a run (default: the last run)"),
    Option("--source", "print the kernels' source with the counts of every line"),
    Option("--file PART", "only files with this in their name", default=""),
    target="results:coverage",
)
_command(
    "merge",
    "put the results of all shards of a run into one file",
    "Check that the results of all shards of one plan are there and complete, and write them to "
    "one results file.",
    Option("paths DIR+", "folders of results files, or the files"),
    Option("-o --output FILE", "the results file to write", required=True),
)
_command(
    "show",
    "print the report of a recorded run again",
    "Print the table and the findings of a recorded run or search again.",
    Option("results RESULTS.jsonl?", "the results file of `run` or `fuzz` (default: the last)"),
    *_as_for_run(_QUIET, _VERBOSE),
    replace(_JUNITXML, group=""),
    replace(_GITHUB, group=""),
    target="results:show",
)
_command(
    "diff",
    "compare two runs: newly failing, fixed, larger errors, slower",
    "Compare two results files case by case. Exit code 1 if a case fails that did not fail before, "
    "or passed before and is not judged now.",
    Option("before BEFORE.jsonl", "the results of the earlier run"),
    Option("after AFTER.jsonl", "the results of the later run"),
    Option(
        "--grown FACTOR",
        "list cases whose error ratio is this many times as large (default: 2)",
        number("a number", 1, 1_000_000),
        default=2.0,
    ),
    Option(
        "--slower FACTOR",
        "list cases that take this many times as long (default: 1.5)",
        number("a number", 1, 1_000_000),
        default=1.5,
    ),
    Option("--all", "list every case, not 20 of each kind"),
    target="results:diff",
)
_command(
    "upgrade",
    "compare kernels under two TileLang releases",
    "Run the cases of specs under two releases of TileLang, each in an environment that is made on "
    "first use and kept, and print what changes: imports, traces, machine code, values, and on a "
    "GPU times. Exit code 1 if the new release fails where the old one does not. Stopped, the same "
    "command continues.",
    Option("releases OLD..NEW", "such as 0.1.14..0.1.15; an omitted one is the installed release"),
    replace(_PATHS, help="specs, folders of them, or cases as SPEC.yaml::ID (default: specs)"),
    replace(TIER, usage="--tier NAME"),
    Option(
        "--backend NAME",
        "compile, interpreter, processes or cuda; repeatable (default: compile, interpreter, and "
        "cuda if there is a GPU)",
        one_of(*(name for name in BACKENDS if name != "auto")),
        repeatable=True,
        default=[],
    ),
    # Not `workers`: the processes of the runs have them, this one has none.
    replace(_WORKERS, help="as for run", name="processes"),
    *_as_for_run(_SELECT, ARCH),
    replace(RESULTS, usage="--results FOLDER", help="folder of the results of both releases"),
    Option("--json", "print all as JSON, the tables on stderr"),
    Option("--all", "list every change, not 20 of each kind"),
    caches=True,
    usage="%(prog)s [options] OLD..NEW [PATH ...]",
)
_command(
    "report",
    "write the report of runs as one HTML file",
    "Write one HTML file that needs no network: the matrix as heat maps, a page for each fault "
    "with a picture of its wrong elements, distributions of errors, coverage of axes, times, the "
    "progress of searches, and benchmarks.",
    Option(
        "results RESULTS*",
        "results files of `run` or `fuzz` (.jsonl), and of `bench` (.json); default: the last run",
    ),
    Option("-o --output FILE", "(default: report.html)", default="report.html"),
    target="results:report",
)
_command(
    "history",
    "show the runs of a folder over time",
    "Print the runs of a folder with their failures, and cases whose outcome changes from run to "
    "run. The results are kept in history.sqlite beside them.",
    Option("folder FOLDER?", "the folder of the results files (default: that of the project)"),
    Option("--last N", "runs (default: 20)", whole(1), default=20),
    Option("--case SPEC.yaml::ID", "print the results of one case in all runs"),
    Option("--sql QUERY", "print the rows of a query over the tables runs and cases"),
    target="results:history",
)
_command(
    "bench",
    "time entries beside other implementations, on a GPU",
    "Time the bench cases of specs on a GPU: the entry and its baselines in turn, forward and "
    "backward. The verdict comes from the confidence interval of their ratio.",
    _PATHS,
    Option(
        "--case JSON",
        "values for axes of a case, in place of the spec's bench cases; repeatable",
        repeatable=True,
    ),
    replace(_SELECT, usage="-k EXPRESSION", help="as for run, over bench cases"),
    Option(
        "--baseline NAME",
        "time this in place of the spec's baselines; repeatable",
        repeatable=True,
    ),
    Option(
        "--against FILE",
        "compare with an earlier run of the same cases; exit code 1 if an entry is slower",
    ),
    Option("--sweep", "also time every combination of the spec's `configs`"),
    Option(
        "--seconds S",
        "time for each pass of a case (default: 2); more narrows the intervals",
        number("a number of seconds", 0, 100_000, above=True),
        default=2.0,
    ),
    Option(
        "--margin SHARE",
        "the largest difference that counts as none (default: 0.02)",
        number("a share", 0, 1),
        default=0.02,
    ),
    Option("--output FILE", "store the timings here"),
    Option("--json", "print the timings as JSON, the tables on stderr"),
    Option("--from FILE", "print stored timings; nothing is timed", name="show"),
    caches=True,
)
_command(
    "new",
    "write a first spec for an operator or a factory",
    "Write a first spec and run it. A TileLang factory is traced; an operator is called once on "
    "the interpreter and its calls are recorded. Imports the module.",
    Option("target PACKAGE.MODULE:NAME", "the factory or operator"),
    Option("-o --output FILE", "write here, not to the terminal"),
    Option(
        "--call EXPRESSION",
        'an example call, such as "f(q, k, v, cu, cu, 128)", over the names of the module, torch, '
        "and --script; small, with no two sizes alike",
    ),
    Option(
        "--script SCRIPT.py",
        "a program that calls the operator once, or makes the tensors of --call",
    ),
    Option("--calls FILE", "calls that `tlmatrix record` wrote, or a FlashInfer trace definition"),
    Option("--no-run", "do not run the spec"),
    target="draft:new",
    caches=True,
)
_command(
    "record",
    "record the calls of kernels that a program makes",
    "Run a script like `python SCRIPT.py`, or a module like `python -m MODULE`, on a GPU or "
    "without one on the interpreter. Writes the shapes, dtypes, scalars and small integer tensors "
    "of each call of a kernel or an operator to a file, with what its result was compared with.",
    Option("-o --output FILE", "the file (default: calls.jsonl)", default="calls.jsonl"),
    Option(
        "--of PACKAGE.MODULE:NAME",
        "also record this function, though no kernel runs in it; repeatable",
        repeatable=True,
        default=[],
    ),
    Option("--trace-only", "trace kernels and run none: fast, but results are zeros"),
    Option("--definitions FOLDER", "also write FlashInfer trace definitions, one a target"),
    Option("-m", "PROGRAM is a module: `tlmatrix record -m pytest tests`", name="module"),
    Option("script PROGRAM", "the script, or with -m the module"),
    Option("arguments ...", "the program's own arguments"),
    target="draft:record",
    caches=True,
)
_command(
    "adopt",
    "write and run a spec of every kernel of a repository",
    "Find the kernels and operators of a repository, record the calls that a command and the "
    "repository's scripts make of them, write a spec of each, run all on the interpreter, and "
    "print what judges each of them, and what is missing. Continues where it was stopped. CMD is "
    "a script or `-m` and a module.",
    Option("-o --output FOLDER", "where the specs go (default: specs in the repository)"),
    replace(_WORKERS, help="processes (default: one per core)", kind=worker_processes(1)),
    Option(
        "--seconds S",
        "time for the command; specs have as much, and what it leaves (default: 360)",
        number("a number of seconds", 1, 100_000),
        default=360.0,
    ),
    Option("folder DIR", "the repository"),
    target="draft:adopt",
    caches=True,
    usage="%(prog)s [options] DIR [-- CMD]",
    words=True,
)
_command(
    "exec",
    "run a GPU script or module, unchanged, on the interpreter",
    "Run a script like `python SCRIPT.py`, or a module like `python -m MODULE`, with TileLang "
    "kernels and cuda tensors on the CPU. Nothing is timed: benchmarks call their function once "
    "and return NaN.",
    Option(
        "--arch ARCH",
        "the architecture of the simulated device (default: sm_90a)",
        default="sm_90a",
    ),
    Option(
        "--sms N",
        "its multiprocessors (default: 8); persistent kernels launch that many blocks",
        whole(1, 65536),
        default=8,
    ),
    Option("--sanitize", "run the kernels with the interpreter's sanitizers"),
    Option(
        "--without NAME,...",
        "with --sanitize: all sanitizers but these (docs/explanation/sanitizers.md lists them), "
        "such as unwritten if the padding of outputs stays unwritten",
    ),
    Option(
        "--lower",
        "lower every kernel with TileLang as well, so that errors of its compiler are raised",
    ),
    Option(
        "--lowered",
        "run what TileLang lowers the kernels to, thread by thread, for sm_80 or sm_90a",
    ),
    Option(
        "--prove",
        "prove properties of the kernels afterwards, for all symbolic dims and integer tensors",
    ),
    Option(
        "-m",
        "PROGRAM is a module, as in `python -m`: `tlmatrix exec -m pytest test_kernel.py`",
        name="module",
    ),
    Option("script PROGRAM", "the script, or with -m the module"),
    Option("arguments ...", "the program's own arguments"),
    target="exec:execute",
    caches=True,
)
_command(
    "cache",
    "show the caches on disk, and bound their size",
    "Show what the caches on disk hold: covering arrays, interpreted programs, assembled kernels, "
    "and TileLang's compiled kernels, which run, fuzz and bench share.",
    Option(
        "--prune SIZE", "remove what was used longest ago until SIZE is left, such as 500M or 10G"
    ),
    target="machine:cache",
    caches=True,
)
_command(
    "doctor",
    "show what this machine has, what runs where, and what is missing",
    "Print software, GPUs, CUDA toolkit, caches, specs and backends, with a remedy for what is "
    "missing. Exit code 1 if there is a problem.",
    target="machine:doctor",
)
_command(
    "copy-spec",
    "copy built-in specs into a project, or list them",
    "Copy specs of tlmatrix's own kernels, which the package carries, as a start for your own. "
    "Without a name, list them.",
    Option("names NAME*", "such as gqa_varlen"),
    Option(
        "-o --output PATH",
        "a folder, or for one spec a .yaml file (default: specs)",
        default="specs",
    ),
    target="specs:copy_spec",
)
_command(
    "completion",
    "print the script with which a shell completes commands",
    "Print a script with which a shell completes commands, options and files: tlmatrix completion "
    "bash > ~/.local/share/bash-completion/completions/tlmatrix",
    Option("shell", "", one_of("bash", "zsh", "tcsh")),
    target="machine:completion",
)
_command(
    "schema",
    "print the JSON Schema of specs, for editors",
    "Print the JSON Schema of specs, with which editors complete and check them.",
    target="specs:schema",
)


def plugin_options() -> list[Option[Any]]:
    """The options that pytest has as `--tlmatrix-NAME`."""
    return [option for option in options_of_runs() if option.pytest]


def options_of_runs() -> list[Option[Any]]:
    """The options that hold for a run, each once: those of `run`, of TOML and of pytest alone."""
    found = {option.name: option for option in (SPECS, ONLY)}
    for option in COMMANDS["run"].options:
        if option.of_run:
            found.setdefault(option.name, option)
    return list(found.values())


T = TypeVar("T")


@dataclass(frozen=True)
class RunOptions:
    """The values of options for a run: `options[SEED]`; its default if there is no value.

    `values` are plain data, by the names of options, which workers get.
    """

    values: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self.values.get(option.name, option.default)
        return value

    def updated(self, given: Mapping[str, Any]) -> RunOptions:
        """These options with the values that are given: not None."""
        names = [each.name for each in options_of_runs() if given.get(each.name) is not None]
        return RunOptions({**self.values, **{name: given[name] for name in names}})


DEFAULTS = RunOptions()
"""The default of every option."""
