"""GPU memory at an address that does not depend on the process, with the seed of the delays.

The address is a constant in the source of perturbed kernels, so a seed needs no compilation, no
argument and no symbol of a loaded module. CUDA's virtual memory management maps memory where it is
asked to if the range is free; if it is not, kernels are compiled for the address that it chose.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ADDRESS = 0x4000_0000_0000
"""64 TiB: below the libraries and stacks of a Linux process, above its heap without ASLR."""
_SIZE = 2 << 20
"""The granularity of mappings."""
_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("index", ctypes.c_int))


class _Allocation(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


@dataclass
class SeedMemory:
    """The seed of one GPU, at `address`; `owner` keeps memory that is not mapped here."""

    address: int
    index: int
    owner: torch.Tensor | None = None
    value: int | None = None

    @classmethod
    def on(cls, index: int) -> SeedMemory:
        """Map the memory of GPU `index`, or allocate it if the driver maps none."""
        import torch

        with torch.cuda.device(index):
            torch.cuda.synchronize()  # creates the context
            address = _mapped(_driver(), index)
            if address is None:
                owner = torch.zeros(1, dtype=torch.int32, device="cuda")
                return cls(owner.data_ptr(), index, owner)
            return cls(address, index)

    def set(self, seed: int) -> None:
        """Write the seed when no kernel runs.

        Raises:
            RuntimeError: the driver cannot write it.
        """
        import torch

        if seed == self.value:
            return
        with torch.cuda.device(self.index):
            torch.cuda.synchronize()
            words = ctypes.c_uint64(self.address), ctypes.c_uint(seed), ctypes.c_size_t(1)
            if error := _driver().cuMemsetD32_v2(*words):
                raise RuntimeError(f"cuMemsetD32 failed with CUDA error {error}")
            torch.cuda.synchronize()
        self.value = seed


def _driver() -> Any:  # noqa: ANN401 - a ctypes library
    return ctypes.CDLL("libcuda.so.1")


def _mapped(driver: Any, index: int) -> int | None:  # noqa: ANN401 - a ctypes library
    """Map memory of a GPU, at `ADDRESS` if it is free; None if the driver refuses."""
    address, handle = ctypes.c_uint64(), ctypes.c_uint64()
    size, none = ctypes.c_size_t(_SIZE), ctypes.c_uint64(0)
    location = _Location(_DEVICE, index)
    allocation = _Allocation(kind=_PINNED, location=location)
    access = _Access(location, _READ_WRITE)
    hint = ctypes.c_uint64(ADDRESS)
    reserve = driver.cuMemAddressReserve
    if reserve(ctypes.byref(address), size, ctypes.c_size_t(0), hint, none):
        return None
    steps = (
        (driver.cuMemCreate, ctypes.byref(handle), size, ctypes.byref(allocation), none),
        (driver.cuMemMap, address, size, ctypes.c_size_t(0), handle, none),
        (driver.cuMemSetAccess, address, size, ctypes.byref(access), ctypes.c_size_t(1)),
    )
    if any(step(*arguments) for step, *arguments in steps):
        return None
    return address.value
