"""Compiles the kernels to be timed in parallel, one process per case and configuration.

Each process runs its case once, which fills TileLang's cache on disk. The timing run then loads
the kernels from the cache.
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
    from tlmatrix.spec.model.spec import Spec

_MAX_PROCESSES = 16
"""Most processes at a time; each has its own tensors on the GPU."""
_SECONDS = 900.0
"""Time limit of a process."""


def precompile(
    spec: Spec,
    pairs: Sequence[tuple[Case, Mapping[str, Any]]],
    roots: Sequence[Path] = (),
    backend: str = "cuda",
) -> None:
    """Run each case with its configuration once; the timing run will report any error again."""
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
    workers = min(len(jobs), os.cpu_count() or 1, _MAX_PROCESSES)
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        list(pool.map(_run_process, jobs))


def _run_process(job: Mapping[str, Any]) -> None:
    try:
        subprocess.run(  # noqa: S603 - this Python, running the user's own spec
            [sys.executable, "-m", "tlmatrix.bench.precompile", json.dumps(job)],
            check=False,
            timeout=_SECONDS,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return


def _run(job: Mapping[str, Any]) -> None:
    from tlmatrix.backend import backend_named
    from tlmatrix.bench.candidates import entry_run, prepare_candidate
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
        prepare_candidate(run, problem)


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
