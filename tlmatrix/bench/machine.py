"""The GPU of this process as a `Machine`, with its hardware and clock rates."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import backend_named
from tlmatrix.bench.engine import Machine
from tlmatrix.bench.precompile import precompile
from tlmatrix.bench.roofs import roof_of
from tlmatrix.bench.timing import cuda_clock

if TYPE_CHECKING:
    import torch

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
