"""Compiles what is about to be timed side by side, each case and configuration in its own process.

A process runs one of them once. What TileLang compiles there it finds again in its cache on
disk, so that the run that times them waits for the slowest compiler and not for all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.matrix import Case
    from tlmatrix.spec.models import Spec

__all__ = ["warm"]

_MOST = 16
"""Processes at once: each has its own tensors on the GPU."""
_SECONDS = 900.0
"""A compiler that takes longer does not end; the run itself will say so."""


def warm(
    spec: Spec,
    pairs: Sequence[tuple[Case, Mapping[str, Any]]],
    roots: Sequence[Path] = (),
    backend: str = "cuda",
) -> None:
    """Run each case in its configuration once; what goes wrong is told when it is tried again."""
    jobs = [
        {
            "spec": str(spec.path),
            "values": dict(case.values),
            "config": dict(config),
            "roots": [str(root) for root in roots],
            "backend": backend,
        }
        for case, config in pairs
    ]
    workers = min(len(jobs), os.cpu_count() or 1, _MOST)
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        list(pool.map(_started, jobs))


def _started(job: Mapping[str, Any]) -> None:
    try:
        subprocess.run(  # noqa: S603 - this Python, and what the user's own spec says
            [sys.executable, "-m", "tlmatrix.bench.warm", json.dumps(job)],
            check=False,
            timeout=_SECONDS,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return


def _run(job: Mapping[str, Any]) -> None:
    from tlmatrix.backend import backend_named
    from tlmatrix.bench.candidates import candidate, entry_run
    from tlmatrix.matrix import Case
    from tlmatrix.problem import family_for
    from tlmatrix.spec.importing import make_importable
    from tlmatrix.spec.loader import load_spec

    roots = tuple(Path(root) for root in job["roots"])
    make_importable(Path(job["spec"]), roots)
    spec = load_spec(job["spec"])
    backend = backend_named(job["backend"])
    case = Case(spec.name, job["values"], "extra")
    problem = family_for(spec).problem(spec, case.values, seed=case.seed, device=backend.device)
    with backend.active():
        run = entry_run(spec, problem, backend, roots=roots, config=job["config"])
        candidate(run, problem)


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
