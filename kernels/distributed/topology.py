"""NVLink connectivity of GPUs, from the driver's management library (NVML) or `nvidia-smi`.

NVML needs the package nvidia-ml-py (`pip install 'tlmatrix[distributed]'`), and `nvidia-smi` comes
with the driver. Without both the result is unknown, with the reason, and the next call asks again.
"""

import re
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch


@dataclass(frozen=True)
class Links:
    """Whether every pair of some GPUs is connected by NVLink."""

    every_pair: bool | None
    """None if unknown."""
    reason: str
    """One sentence: what is connected, which pair is not, or why it is unknown."""


_SECONDS = 20.0
"""Time limit of one `nvidia-smi`."""
_lock = threading.Lock()
_known: dict[tuple[str, ...], Links] = {}


def gpu_name(device: int) -> str:
    """The UUID of a GPU, as NVML and nvidia-smi write it: unlike its index, equal in all processes.

    Args:
        device: the PyTorch device index.
    """
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def nvlinks(devices: Sequence[int] | None = None) -> Links:
    """Whether every pair of the GPUs is connected by NVLink; see `nvlinks_between`.

    Args:
        devices: PyTorch device indices, i.e. after `CUDA_VISIBLE_DEVICES`; by default all.

    Raises:
        ValueError: an index is out of range.
    """
    count = torch.cuda.device_count()
    chosen = list(range(count)) if devices is None else list(devices)
    if any(not 0 <= index < count for index in chosen):
        raise ValueError(f"devices must be from 0 to {count - 1}, for {count} GPUs, got {chosen}")
    chosen = list(dict.fromkeys(chosen))
    return nvlinks_between([gpu_name(index) for index in chosen], [str(index) for index in chosen])


def nvlinks_between(names: Sequence[str], labels: Sequence[str] | None = None) -> Links:
    """Whether every pair of GPUs of this machine is connected by NVLink. Thread-safe.

    An answer is remembered; that it is unknown is not.

    Args:
        names: UUIDs (`gpu_name`), all different.
        labels: how the answer names the GPUs; by default by their UUIDs.
    """
    if len(names) < 2:
        return Links(every_pair=True, reason=f"{len(names)} GPU: there is no pair to connect")
    key, labels = tuple(names), list(labels or names)
    with _lock:
        if key not in _known:
            found = _query_nvml(labels, key)
            if found.every_pair is None:
                found = _query_nvidia_smi(labels, key, found.reason)
            if found.every_pair is None:
                return found
            _known[key] = found
        return _known[key]


def _unlinked(one: str, other: str) -> Links:
    return Links(every_pair=False, reason=f"GPUs {one} and {other} are not connected by NVLink")


def _all_linked(labels: list[str]) -> Links:
    return Links(
        every_pair=True, reason=f"all of GPUs [{', '.join(labels)}] are connected by NVLink"
    )


def _query_nvidia_smi(labels: list[str], names: tuple[str, ...], before: str) -> Links:
    """The same from `nvidia-smi`; `before` is the reason why NVML has no answer."""
    try:
        rows = _nvidia_smi("--query-gpu=index,uuid", "--format=csv,noheader").splitlines()
        table = _nvidia_smi("topo", "-p2p", "n")
    except (OSError, subprocess.SubprocessError) as error:
        return Links(every_pair=None, reason=f"{before}; nvidia-smi does not say ({error})")
    places = {name.strip(): int(index) for index, name in (row.split(",") for row in rows)}
    statuses = {
        int(index): cells.split()
        for index, cells in re.findall(r"^\s*GPU(\d+)\s(.*\S)", table, re.MULTILINE)
    }
    for (one, first), (other, second) in combinations(zip(labels, names, strict=True), 2):
        try:
            status = statuses[places[first]][places[second]]
        except (KeyError, IndexError):
            return Links(
                every_pair=None, reason=f"{before}; nvidia-smi has no GPU {one} or {other}"
            )
        if status != "OK":
            return _unlinked(one, other)
    return _all_linked(labels)


def _nvidia_smi(*arguments: str) -> str:
    command = ["nvidia-smi", *arguments]
    done = subprocess.run(  # noqa: S603 - the driver's own tool
        command, check=True, capture_output=True, text=True, timeout=_SECONDS
    )
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


def _query_nvml(labels: list[str], names: tuple[str, ...]) -> Links:
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
        for (one, first), (other, second) in combinations(zip(labels, handles, strict=True), 2):
            status = pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if status != pynvml.NVML_P2P_STATUS_OK:
                return _unlinked(one, other)
    except pynvml.NVMLError as error:
        return Links(every_pair=None, reason=f"not known: NVML does not say ({error})")
    finally:
        pynvml.nvmlShutdown()
    return _all_linked(labels)
