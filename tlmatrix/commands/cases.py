"""Finds the case of a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from tlmatrix.config import Config
    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec


def named_case(name: str, values: str | None, config: Config) -> tuple[str, Spec, Case]:
    """The path, the spec and the case of `SPEC.yaml::ID`, or the case with `values`.

    Raises:
        UsageError: the spec or case does not exist, or the values are invalid.
        SpecError: the spec is invalid.
    """
    from tlmatrix.spec.importing import make_importable
    from tlmatrix.spec.loader import load_spec

    path, _, case_id = name.partition("::")
    if not Path(path).is_file():
        raise UsageError(f"no such spec: {path}; expected SPEC.yaml::ID, as a finding prints it")
    make_importable(Path(path), (config.root,))
    spec = load_spec(path)
    return path, spec, _case(spec, case_id, values)


def _case(spec: Spec, case_id: str, values: str | None) -> Case:
    from tlmatrix.matrix import CaseNotFoundError, case_of, find_case

    try:
        if values is None:
            if not case_id:
                raise UsageError("no case given; write SPEC.yaml::ID or --values JSON")
            return find_case(spec, case_id)
        try:
            data = json.loads(values)
        except json.JSONDecodeError as error:
            raise UsageError(f"--values: not JSON: {error}") from error
        if not isinstance(data, dict):
            raise UsageError('--values: must be an object, such as {"head_dim": 96}')
        return case_of(spec, data)
    except CaseNotFoundError as error:
        raise UsageError(str(error)) from error
