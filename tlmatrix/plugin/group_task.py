"""Runs a group of cases without pytest, as a task on another machine."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.options.table import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.options.run_options import RunOptions
    from tlmatrix.run.runner import Runner


def run_group(
    path: str, case_ids: Sequence[str], options: RunOptions
) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Run cases of a spec; yields (`start`, id, None), then (`result`, id, result) for each.

    The working directory has the project. A result is the plain data of `CaseResult.to_json`.

    Raises:
        SpecError: the spec is invalid here.
        CaseNotFoundError: the spec has no case with an id.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from tlmatrix.matrix import find_case
    from tlmatrix.spec.importing import make_importable
    from tlmatrix.spec.loader import load_spec

    make_importable(Path(path), (Path.cwd(),))
    spec = load_spec(path)
    runner = _runner(options)
    for case_id in case_ids:
        case = find_case(spec, case_id)
        yield "start", case_id, None
        result = runner.run(
            spec,
            case,
            path=path,
            reruns="rotate" if case.origin == "fuzz" else "all",
            time_limit=options[TIMEOUT] or None,
        )
        yield "result", case_id, result.to_json()
        if runner.broken_by:
            os._exit(70)  # the GPU is lost; another process runs the other cases


@cache
def _runner(options: RunOptions) -> Runner:
    """The runner of this process, which keeps kernels and bindings for later groups."""
    import torch

    from tlmatrix.run.runner import Runner
    from tlmatrix.run.sources import SourceWatch

    torch.set_num_threads(1)
    runner = Runner(options=options, roots=(Path.cwd(),), sources=SourceWatch((Path.cwd(),)))
    runner.prepare()
    return runner
