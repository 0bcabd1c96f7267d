"""NVLink connectivity of GPUs, from the driver's management library (NVML).

Needs the package nvidia-ml-py (`pip install 'tlmatrix[distributed]'`) and an NVIDIA driver; without
them the result is unknown, with the reason.
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
    """None if unknown."""
    reason: str
    """One sentence: what is connected, which pair is not, or why it is unknown."""


_lock = threading.Lock()
_known: dict[tuple[str, ...], Links] = {}


def nvlinks(devices: Sequence[int] | None = None) -> Links:
    """Whether every pair of the GPUs is connected by NVLink. The result is cached; thread-safe.

    Args:
        devices: PyTorch device indices, i.e. after `CUDA_VISIBLE_DEVICES`; by default all.

    Raises:
        ValueError: an index is out of range.
    """
    count = torch.cuda.device_count()
    chosen = list(range(count)) if devices is None else list(devices)
    if any(not 0 <= index < count for index in chosen):
        raise ValueError(f"devices must be from 0 to {count - 1}, for {count} GPUs, got {chosen}")
    if len(set(chosen)) < 2:
        return Links(every_pair=True, reason=f"{len(set(chosen))} GPU: there is no pair to connect")
    # The index of a GPU differs between processes; its UUID does not.
    names = tuple(f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in chosen)
    with _lock:
        if names not in _known:
            _known[names] = _query_nvml(chosen, names)
        return _known[names]


def _query_nvml(indices: list[int], names: tuple[str, ...]) -> Links:
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
