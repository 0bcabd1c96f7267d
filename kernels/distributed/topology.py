"""Whether GPUs are connected by NVLink, as the driver's management library (NVML) says.

Needs the package nvidia-ml-py (`pip install 'tlmatrix[distributed]'`) and an NVIDIA driver; where
one of them is missing, the answer is that it is not known, and why.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

__all__ = ["Links", "nvlinks"]


@dataclass(frozen=True)
class Links:
    """Whether every pair of some GPUs is connected by NVLink."""

    every_pair: bool | None
    """None where it is not known."""
    reason: str
    """A sentence for people: what is connected, which pair is not, or why it is not known."""


_lock = threading.Lock()
_known: dict[tuple[str, ...], Links] = {}


def nvlinks(devices: Sequence[int] | None = None) -> Links:
    """Whether every pair of the GPUs is connected by NVLink. Asked once, then remembered.

    May be called from any thread.

    Args:
        devices: indices of PyTorch, as `CUDA_VISIBLE_DEVICES` leaves them; by default all.

    Raises:
        ValueError: an index that no GPU has.
    """
    count = torch.cuda.device_count()
    chosen = list(range(count)) if devices is None else list(devices)
    if any(not 0 <= index < count for index in chosen):
        raise ValueError(f"devices must be of 0 to {count - 1}, for {count} GPUs, got {chosen}")
    if len(set(chosen)) < 2:
        return Links(every_pair=True, reason=f"{len(set(chosen))} GPU: there is no pair to connect")
    # One GPU has many indices, by process, and one identity.
    names = tuple(f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in chosen)
    with _lock:
        if names not in _known:
            _known[names] = _ask(chosen, names)
        return _known[names]


def _ask(indices: list[int], names: tuple[str, ...]) -> Links:
    try:
        import pynvml
    except ImportError:
        return Links(
            every_pair=None,
            reason="not known: nvidia-ml-py is not installed (pip install 'tlmatrix[distributed]')",
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Links(every_pair=None, reason=f"not known: NVML does not start ({error})")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByUUID(name) for name in names]
        for (one, first), (other, second) in combinations(zip(indices, handles, strict=True), 2):
            status = pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if status != pynvml.NVML_P2P_STATUS_OK:
                return Links(
                    every_pair=False, reason=f"GPUs {one} and {other} are not connected by NVLink"
                )
    except pynvml.NVMLError as error:
        return Links(every_pair=None, reason=f"not known: NVML does not say ({error})")
    finally:
        pynvml.nvmlShutdown()
    return Links(every_pair=True, reason=f"all of GPUs {indices} are connected by NVLink")
