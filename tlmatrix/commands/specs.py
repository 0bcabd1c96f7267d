"""`tlmatrix list`, `check`, `copy-spec`, `schema`; and the specs that other commands get."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.axes import unsampled_options, unvaried_options
from tlmatrix.commands.screen import print_wrapped
from tlmatrix.exit_codes import ExitCode, UsageError, writing
from tlmatrix.fuzz.strategies import case_domain, summarize
from tlmatrix.matrix import CaseNotFoundError, explain
from tlmatrix.options.table import SPECS, TIER
from tlmatrix.problem import family_for
from tlmatrix.problem.lint import lint_floors, lint_shares
from tlmatrix.prove.answers import summary
from tlmatrix.report.text import count
from tlmatrix.results_file import shown_path
from tlmatrix.run.plan import Plan, plan
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.loader import find_specs, load_spec
from tlmatrix.spec.values import label
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tlmatrix.config import Config
    from tlmatrix.matrix import Case, Explanation


def spec_paths(given: Sequence[str], config: Config) -> list[Path]:
    """The specs under the given paths, by default those of the configuration.

    Raises:
        UsageError: a path does not exist, or there is no spec.
    """
    paths = list(given) or [os.path.relpath(config.root / path) for path in config[SPECS]]
    try:
        found = find_specs(paths)
    except FileNotFoundError as error:
        remedy = "" if given else " (name a spec, or set `specs` in [tool.tlmatrix])"
        raise UsageError(f"{error}{remedy}") from error
    if not found:
        raise UsageError(f"no spec in {', '.join(paths)}; `tlmatrix new` writes a first one")
    return found


def nodes_of(given: Sequence[str], config: Config) -> dict[Path, set[str]]:
    """The specs under the given paths, each with the ids of arguments `SPEC.yaml::ID`.

    An empty set of ids is the whole spec, also if another argument names one of its cases.

    Raises:
        UsageError: a path does not exist, or there is no spec.
    """
    split = [word.partition("::") for word in given]
    plain = [path for path, _, case in split if not case]
    whole = spec_paths(plain, config) if plain or not given else []
    found: dict[Path, set[str]] = {path: set() for path in whole}
    for path, _, case in split:
        if case and Path(path) not in whole:
            if not Path(path).is_file():
                raise UsageError(f"no such spec: {path}")
            found.setdefault(Path(path), set()).add(case)
    return found


def plan_all(
    paths: Iterable[Path], tier: str, *, seed: int | None = None, roots: Iterable[Path] = ()
) -> list[Plan]:
    """Load and plan specs, without importing entries or PyTorch.

    Raises:
        SpecError: all errors of all specs.
    """
    plans: list[Plan] = []
    issues: list[Issue] = []
    for path in paths:
        make_importable(path, roots)  # A spec may name a problem family of the user.
        try:
            plans.append(plan(load_spec(path), tier, seed=seed))
        except SpecError as error:
            issues += error.issues
    if issues:
        raise SpecError(issues)
    return plans


def selector_of(expression: str) -> Callable[[Case, Iterable[str]], bool] | None:
    """Whether a case matches the expression of `-k`, with pytest's syntax; None without one.

    Raises:
        UsageError: the expression is invalid.
    """
    if not expression:
        return None
    from tlmatrix.plugin.items import KeywordError, selector  # which imports pytest

    try:
        return selector(expression)
    except KeywordError as error:
        raise UsageError(str(error)) from error


def values_of(text: str, option: str, example: str, *, some: bool = False) -> dict[str, Any]:
    """The axis values that an option gives as a JSON object.

    Raises:
        UsageError: it is not one, or is empty and must have `some`.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{option}: not JSON: {error}") from error
    if not isinstance(data, dict) or (some and not data):
        raise UsageError(f"{option}: must be an object, such as {example}")
    return data


def check_fuzzing(plans: Iterable[Plan]) -> None:
    """Check that the fuzz cases of specs can be generated, without generating any.

    Raises:
        SpecError: all errors of all specs.
    """
    issues: list[Issue] = []
    for each in plans:
        if each.spec.fuzz is None:
            continue
        try:
            case_domain(each.spec, each.tier)
        except SpecError as error:
            issues += error.issues
    if issues:
        raise SpecError(issues)


# list -------------------------------------------------------------------------------------------


def list_cases(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the number of cases of each spec; with `--explain`, why one case is in its tiers.

    Raises:
        UsageError: the spec or case does not exist.
        SpecError: a spec is invalid.
    """
    if arguments.explain:
        return _explain_case(arguments, config)
    tier = config.chosen(arguments)[TIER]
    paths = spec_paths(arguments.paths, config)
    plans = plan_all(paths, tier, seed=arguments.seed, roots=[config.root])
    for each in plans:
        for line in list_lines(each, cases=arguments.cases):
            print_wrapped(line)
        if proven := summary(each.spec, [config.root]):
            print_wrapped(f"    {proven.partition(': ')[2]}")
    total = sum(each.count() for each in plans)
    known = [each.configurations() for each in plans]
    compiled = "" if None in known else f", compiled for {sum(filter(None, known))} configurations"
    print(f"{count(total, 'case')} of {count(len(plans), 'spec')} in the tier {tier}{compiled}")
    return ExitCode.OK


def _explain_case(arguments: argparse.Namespace, config: Config) -> ExitCode:
    path, _, case_id = arguments.explain.rpartition("::")
    reasons = []
    for found in spec_paths([path] if path else arguments.paths, config):
        try:
            spec = load_spec(found)
            explanation = explain(spec, case_id, partial(family_for(spec).compile_key, spec))
        except CaseNotFoundError as error:
            reasons.append(f"{found}: {error}")
            continue
        for line in explain_lines(explanation):
            print_wrapped(line)
        return ExitCode.OK
    raise UsageError("\n".join(reasons))


# check ------------------------------------------------------------------------------------------


def check(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Load and expand specs, and check that fuzz cases can be generated.

    Raises:
        UsageError: a spec does not exist.
        SpecError: all errors of all specs.
    """
    paths = spec_paths(arguments.paths, config)
    plans = plan_all(paths, config.chosen(arguments)[TIER], roots=[config.root])
    check_fuzzing(plans)
    for each in plans:
        for warning in (*lint_floors(each.spec), *lint_shares(each.spec, each.family)):
            print(f"warning: {warning}")
    named = {each.spec.path.resolve() for each in plans}
    together = [*plans, *_beside(plans)]
    for warning in unvaried_options([(each.spec, each.family) for each in together]):
        if warning.path.resolve() in named:
            print(f"warning: {warning}")
    for each in plans:
        if each.expansion.strategy.startswith("sample"):
            cases = (case.values for case in each.expansion.cases)
            for warning in unsampled_options(each.spec, each.tier, cases):
                print(f"warning: {warning}")
    print(f"{count(len(plans), 'spec')}, no errors")
    return ExitCode.OK


def _beside(plans: Sequence[Plan]) -> Iterator[Plan]:
    """Plans of the other specs in the folders of `plans` that have one of their entries."""
    named = {each.spec.path.resolve() for each in plans}
    entries = {each.spec.entry for each in plans if each.spec.entry is not None}
    with suppress(SpecError):
        for path in find_specs({path.parent for path in named}):
            text = path.read_text(encoding="utf-8", errors="replace")
            if path.resolve() not in named and any(entry in text for entry in entries):
                with suppress(SpecError):  # of a spec that was not named
                    yield plan(load_spec(path))


# Specs of tlmatrix's own kernels, and their schema ----------------------------------------------


def builtin_specs() -> dict[str, Path]:
    """The specs by name; empty if the kernels are not installed.

    In a wheel they are in `tlmatrix_kernels/specs`; in a clone, beside the kernels.
    """
    found = find_spec("tlmatrix_kernels")
    if found is None or found.origin is None:
        return {}
    kernels = Path(found.origin).parent
    folders = (kernels / "specs", kernels.parent / "specs")
    folder = next((each for each in folders if each.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _builtin_path(name: str) -> Path:
    """The path of a built-in spec.

    Raises:
        LookupError: there is no spec of that name.
    """
    known = builtin_specs()
    if name not in known:
        raise LookupError(
            f"no built-in spec {name!r}{suggestion(name, sorted(known), 'There are')}"
        )
    return known[name]


def builtin_paths(names: Iterable[str]) -> list[str]:
    """The paths of built-in specs.

    Raises:
        UsageError: there is no spec of a name.
    """
    try:
        return [shown_path(_builtin_path(name)) for name in names]
    except LookupError as error:
        raise UsageError(f"--builtin: {error.args[0]}; `tlmatrix copy-spec` lists them") from error


def copy_spec(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Copy built-in specs to files of the project; without names, list them.

    Raises:
        UsageError: there is no such spec, or a file exists.
    """
    if not arguments.names:
        known = builtin_specs()
        width = max(map(len, known), default=0)
        for name, path in known.items():
            print(f"{name:<{width}}  {load_spec(path).summary}".rstrip())
        return ExitCode.OK
    try:
        sources = [_builtin_path(name) for name in arguments.names]
    except LookupError as error:
        raise UsageError(f"copy-spec: {error.args[0]}") from error
    target = Path(arguments.output)
    one_file = target.suffix in (".yaml", ".yml")
    if one_file and len(sources) > 1:
        raise UsageError(f"-o {target}: is one file; give a folder for {len(sources)} specs")
    for source in sources:
        path = target if one_file else target / source.name
        if path.exists():
            raise UsageError(f"copy-spec: {path} exists; give another -o, or remove it")
        with writing("-o", path):
            path.write_text(_portable(source.read_text(encoding="utf-8")), encoding="utf-8")
        command = f"tlmatrix run {shlex.quote(shown_path(path))}"
        print(f"{shown_path(path)}: run it with `{command}`")
    return ExitCode.OK


def _portable(text: str) -> str:
    """A spec without a path of the schema, which holds in a checkout of tlmatrix alone."""
    from tlmatrix.spec.schema import EDITOR_COMMENT, MODELINE

    first, _, rest = text.partition("\n")
    return EDITOR_COMMENT + rest if first.startswith(MODELINE) else text


def schema(_arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Print the stored schema."""
    from tlmatrix.spec.schema import SCHEMA_PATH

    print(SCHEMA_PATH.read_text(encoding="utf-8"), end="")
    return ExitCode.OK


def list_lines(plan: Plan, *, cases: bool = False) -> Iterator[str]:
    """The lines about a spec: the counts of its tier's cases; with `cases`, the id of each."""
    spec, expansion = plan.spec, plan.expansion
    yield f"{spec.name}  {spec.path}"
    if spec.summary:
        yield f"    {spec.summary}"
    yield (
        f"    {plan.tier}: {'' if expansion.counted else 'at most '}"
        f"{count(plan.count(), 'case')} ({expansion.strategy}) "
        f"of {expansion.combinations:,} combinations"
    )
    configurations = plan.configurations()
    if configurations is not None:
        yield f"    compiled for {count(configurations, 'configuration')} ({_compiled_for(plan)})"
    parts = {
        "regression": len(spec.regressions),
        "extra case": len(spec.extra_cases),
        "invalid input": len(plan.invalid),
        "known bug": len(spec.known_bugs),
    }
    counts = ", ".join(count(items, name) for name, items in parts.items() if items)
    if counts:
        yield f"    with {counts}"
    examples = spec.fuzz.examples.get(plan.tier, 0) if spec.fuzz is not None else 0
    if examples:
        yield f"    and up to {count(examples, 'fuzz case')} generated when it runs"
        for line in summarize(case_domain(spec, plan.tier)):
            yield f"        {line}"
    others = [f"{name} ({tier.strategy})" for name, tier in spec.tiers.items() if name != plan.tier]
    if others:
        yield f"    other tiers: {', '.join(others)}"
    for rule, removed in expansion.removed.items():
        number = "too many to count" if removed is None else f"{removed:,}"
        yield f"    constraint {rule.text}{rule.reason}: removes {number}"
    if cases:
        for case in plan.cases():
            origin = "" if case.origin == "tier" else f"  ({case.origin})"
            yield f"    {case.id}{origin}"


def _compiled_for(plan: Plan) -> str:
    """What kernels are compiled for, as the spec says."""
    named = ", ".join(str(each) for each in plan.spec.compile_axes)
    return named or "all axes that are not run-time arguments"


def explain_lines(explanation: Explanation) -> Iterator[str]:
    """The lines about a case: its values, its tiers with reasons, and matching known bugs."""
    case = explanation.case
    yield f"{case.spec}::{case.id}"
    width = max(map(len, case.values))
    for name, value in case.values.items():
        yield f"    {name:<{width}}  {label(value)}"
    for tier, membership in explanation.tiers.items():
        yield f"    {tier}: {'yes' if membership.included else 'no'}, {membership.reason}"
    for rule in explanation.removed_by:
        yield f"    removed by the constraint {rule.text}{rule.reason}"
    for bug in explanation.known_bugs:
        yield f"    known bug {bug.issue} until {bug.expires} ({bug.mode}): {bug.when.text}"
    for bug in explanation.undecided:
        yield f"    known bug {bug.issue}, depending on architecture or backend: {bug.when.text}"
    yield f"    seed {explanation.seed}"
