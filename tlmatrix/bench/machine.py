"""The GPU that timings are taken on, with what a reader of them must know of it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import backend_named
from tlmatrix.bench.engine import Machine
from tlmatrix.bench.roofs import roof_of
from tlmatrix.bench.timing import cuda_clock
from tlmatrix.bench.warm import warm

if TYPE_CHECKING:
    import torch

__all__ = ["this_machine"]

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
"""What nvidia-smi is asked, and what it is called here; a question that one does not know costs the
answers to all that were asked with it."""


def this_machine() -> Machine:
    """The GPU of this process.

    Raises:
        BackendUnavailableError: there is none.
    """
    backend = backend_named("cuda")
    device = backend.device
    hardware = _hardware(device)
    return Machine(
        backend=backend,
        clock=cuda_clock(device),
        hardware=hardware,
        roof=roof_of(str(hardware["gpu"])),
        warm=warm,
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
        **_asked(uuid, {"driver_version": "driver"}),
    }


def _clocks(uuid: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for fields in _CLOCKS:
        found |= _asked(uuid, fields)
    return found


def _asked(uuid: str, fields: dict[str, str]) -> dict[str, Any]:
    """Answers of nvidia-smi by our names; nothing where it is not there or knows nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    if uuid:
        command.append(f"--id={uuid if uuid.startswith('GPU-') else f'GPU-{uuid}'}")
    try:
        done = subprocess.run(  # noqa: S603 - words of our own alone
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
