"""Compute capability and multiprocessor count of the target, for the choice of tiles."""

import functools

import torch
from tilelang import tvm
from tilelang.backend.target import determine_target

# Compute capabilities. Without a GPU and outside of compilation, tiles are chosen for HOPPER.
HOPPER = 90
BLACKWELL = 100


def capability():
    """The compute capability of the current target: 80 for sm_80, 90 for sm_90a, 100 for sm_100a.

    While a kernel is traced, this is the architecture that the kernel is compiled for. Otherwise it
    is that of the current GPU, or Hopper's if there is no GPU.
    """
    target = tvm.target.Target.current(allow_none=True)
    if target is None:
        started = torch.cuda.is_initialized()
        return _of_device(torch.cuda.get_device_capability() if started else None)
    return _of_target(target)


@functools.cache
def _of_device(_capability):
    """The capability of the current GPU; `_capability`, as PyTorch has it, is the cache key."""
    try:
        return _of_target(determine_target("auto", return_object=True))
    except ValueError:  # there is no GPU
        return HOPPER


def _of_target(target):
    return int(str(target.attrs["arch"]).removeprefix("sm_").rstrip("af"))


# By compute capability, if there is no GPU: A100, H100 and B200.
MULTIPROCESSORS = {80: 108, 90: 132, 100: 148}


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; without a GPU, that of the current target."""
    if device.type == "cuda" and torch.cuda.is_initialized():  # cheaper than `is_available`
        return _processors(device)
    return MULTIPROCESSORS.get(capability(), MULTIPROCESSORS[HOPPER])


@functools.cache
def _processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count
