"""The GPU that kernels are compiled for, as far as their tiles depend on it."""

import torch
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
    try:
        target = determine_target("auto", return_object=True)
    except ValueError:  # no target in force, and no GPU
        return HOPPER
    digits = str(target.attrs["arch"]).removeprefix("sm_").rstrip("af")
    return int(digits)


# Of a device that is no GPU: those of an A100, an H100 and a B200.
MULTIPROCESSORS = {80: 108, 90: 132, 100: 148}


def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a GPU has; those of the target in force where there is none."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).multi_processor_count
    return MULTIPROCESSORS.get(capability(), MULTIPROCESSORS[HOPPER])
