"""The GPU that the interpreter claims to be."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

WARP = 32
"""Threads of a warp."""
WARP_GROUP = 128
"""Threads of a warp group."""
REGISTERS = 65536
"""Registers of a multiprocessor."""

# Dynamic shared memory a block may use, and of an SM, in bytes, by architecture.
_SHARED = dict.fromkeys((80, 87), (166912, 167936))
_SHARED |= dict.fromkeys((86, 89, 120, 121), (101376, 102400))
_SHARED_OF_OTHERS = (232448, 233472)


@dataclass(frozen=True)
class DeviceProperties:
    """What `torch.cuda.get_device_properties` answers.

    Attributes:
        multi_processor_count: the number persistent kernels launch blocks by.
        total_memory: the machine's memory in bytes: tensors live there.
    """

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    regs_per_multiprocessor: int = REGISTERS
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    warp_size: int = WARP
    L2_cache_size: int = 50 << 20
    is_integrated: bool = False
    is_multi_gpu_board: bool = False


def device_properties(arch: str, sms: int) -> DeviceProperties:
    """The properties of a GPU of an architecture, with some number of multiprocessors.

    Raises:
        ValueError: for an `arch` that is not like `sm_90a`.
    """
    version = _version(arch)
    optin, whole = _SHARED.get(version, _SHARED_OF_OTHERS)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceProperties(
        name=f"tlmatrix interpreter ({arch})",
        major=version // 10,
        minor=version % 10,
        multi_processor_count=sms,
        total_memory=memory,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=optin,
        shared_memory_per_multiprocessor=whole,
    )


def is_cuda(device: Any) -> bool:
    """Whether a device, by its name, number or itself, is a GPU."""
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def shared_memory_per_block(arch: str) -> int:
    """Bytes of shared memory that one block of an architecture can have."""
    return _SHARED.get(_version(arch), _SHARED_OF_OTHERS)[0]


@cache
def _version(arch: str) -> int:
    number = re.match(r"sm_(\d+)", arch)
    if number is None:
        raise ValueError(f"arch must be like 'sm_90a', got {arch!r}")
    return int(number.group(1))
