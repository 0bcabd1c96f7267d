"""The GPU that kernels are compiled for, as far as their tiles depend on it."""

import functools

import torch
from tilelang import tvm
from tilelang.backend.target import determine_target

__all__ = ["BLACKWELL", "HOPPER", "capability", "multiprocessors"]

# What tiles are tuned for first; meant where nothing is being compiled, in benchmarks and tests.
HOPPER = 90
BLACKWELL = 100


def capability():
    """The compute capability of the target in force: 80 for sm_80, 90 for sm_90a, 100 for sm_100a.

    While a kernel is traced that is the architecture it is traced for; outside of that the GPU of
    this machine, and Hopper where there is none.
    """
    target = tvm.target.Target.current(allow_none=True)
    if target is None:
        return _of_device(torch.cuda.current_device() if torch.cuda.is_initialized() else None)
    return _of_target(target)


@functools.cache
def _of_device(_number):
    """Of the current GPU, whose number that is; looking takes as long as launching a kernel."""
    try:
        return _of_target(determine_target("auto", return_object=True))
    except ValueError:  # there is no GPU
        return HOPPER


def _of_target(target):
    return int(str(target.attrs["arch"]).removeprefix("sm_").rstrip("af"))


# Of a device that is no GPU: those of an A100, an H100 and a B200.
MULTIPROCESSORS = {80: 108, 90: 132, 100: 148}


def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a GPU has; those of the target in force where there is none."""
    if device.type == "cuda" and torch.cuda.is_available():
        return _processors(device)
    return MULTIPROCESSORS.get(capability(), MULTIPROCESSORS[HOPPER])


@functools.cache
def _processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count
