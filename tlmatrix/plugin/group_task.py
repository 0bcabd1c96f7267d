"""Runs a group of cases without pytest, as a task on another machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.run.runner import Runner


@dataclass(frozen=True)
class GroupSettings:
    """The settings of a run that its groups need; the working directory has the project."""

    backend: str
    seed: int = 0
    timeout: float = 0.0
    strict: bool = False
    keep_going: bool = False
    rank_seconds: float = 120.0


def run_group(
    path: str, case_ids: Sequence[str], settings: GroupSettings
) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Run cases of the spec at `path`; yields (`start`, id, None), then (`result`, id, result).

    A result is the plain data of `CaseResult.to_json`.

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
    runner = _runner(settings)
    for case_id in case_ids:
        case = find_case(spec, case_id)
        yield "start", case_id, None
        result = runner.run(
            spec,
            case,
            path=path,
            reruns="rotate" if case.origin == "fuzz" else "all",
            time_limit=settings.timeout or None,
        )
        yield "result", case_id, result.to_json()
        if runner.broken_by:
            os._exit(70)  # the GPU is lost; another process runs the other cases


@cache
def _runner(settings: GroupSettings) -> Runner:
    """The runner of this process, which keeps kernels and bindings for later groups."""
    import torch

    from tlmatrix.run.runner import Runner
    from tlmatrix.run.sources import SourceWatch

    torch.set_num_threads(1)
    runner = Runner(
        settings.backend,
        seed=settings.seed,
        roots=(Path.cwd(),),
        strict=settings.strict,
        keep_going=settings.keep_going,
        rank_seconds=settings.rank_seconds,
        sources=SourceWatch((Path.cwd(),)),
    )
    runner.prepare()
    return runner
