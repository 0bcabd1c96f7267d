"""Finds, loads and plans the specs of a command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.exit_codes import UsageError
from tlmatrix.fuzz.strategies import case_domain
from tlmatrix.options.table import SPECS
from tlmatrix.run.plan import Plan, plan
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.loader import find_specs, load_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.config import Config


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
