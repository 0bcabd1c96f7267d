"""The GPU of this process as a `Machine`, with its hardware and clock rates.

Kernels to be timed are compiled in parallel, one process per case and configuration. Each process
runs its case once, which fills TileLang's cache on disk. The timing run then loads the kernels from
the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import backend_named
from tlmatrix.bench.engine import Machine
from tlmatrix.bench.roofs import roof_of
from tlmatrix.bench.timing import cuda_clock

if TYPE_CHECKING:
    import torch

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
            [sys.executable, "-m", "tlmatrix.bench.machine", json.dumps(job)],
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


_CLOCKS: tuple[dict[str, str], ...] = (
    {
        "clocks.sm": "sm_mhz",
        "clocks.mem": "memory_mhz",
        "clocks.max.sm": "most_sm_mhz",
        "temperature.gpu": "celsius",
        "power.draw": "watts",
        "power.limit": "most_watts",
    },
    {"clocks_event_reasons.active": "throttled_by"},
)
"""Queries to nvidia-smi and the names of their answers; an unknown field fails its whole query."""


def this_machine() -> Machine:
    """Describe the GPU of this process.

    Raises:
        BackendUnavailableError: there is no GPU.
    """
    backend = backend_named("cuda")
    device = backend.device
    hardware = _hardware(device)
    return Machine(
        backend=backend,
        clock=cuda_clock(device),
        hardware=hardware,
        roof=roof_of(str(hardware["gpu"])),
        precompile=precompile,
        clocks=lambda: _clocks(str(hardware["uuid"])),
    )


def _hardware(device: torch.device) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", ""))
    return {
        "gpu": properties.name,
        "uuid": uuid,
        "arch": f"sm_{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": int(getattr(properties, "L2_cache_size", 0)),
        "cuda": torch.version.cuda or "",
        **_query_nvidia_smi(uuid, {"driver_version": "driver"}),
    }


def _clocks(uuid: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for fields in _CLOCKS:
        found |= _query_nvidia_smi(uuid, fields)
    return found


def _query_nvidia_smi(uuid: str, fields: dict[str, str]) -> dict[str, Any]:
    """Query nvidia-smi; empty if it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    if uuid:
        command.append(f"--id={uuid if uuid.startswith('GPU-') else f'GPU-{uuid}'}")
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            command, check=True, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    answers = [answer.strip() for answer in done.stdout.splitlines()[0].split(",")]
    return {
        name: _number(answer)
        for name, answer in zip(fields.values(), answers, strict=False)
        if answer and not answer.startswith("[")
    }


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
