"""Seeded delays at the synchronization points of CUDA kernels: `--perturb SEED`.

`perturbed` inserts the delays into the CUDA source that TileLang generates, `seed` holds the seed
in GPU memory, from which kernels read it. So all seeds share one compiled kernel.

The environment variable `SEED` requests delays of this process and of those that it starts.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.perturb.seed import ADDRESS, SeedMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

__all__ = [
    "DELAYS",
    "SEED",
    "VERSION",
    "cache_key",
    "install",
    "perturbed",
    "request",
    "requested",
    "set_seed",
]


SEED = "TLMATRIX_PERTURB"
"""Environment variable: the seed; 0 for kernels with delays that are all 0."""

_memories: dict[int, SeedMemory] = {}
"""By the index of the GPU."""


def request(seed: int) -> None:
    """Perturb the kernels of this process, and of those that it starts, by this seed."""
    os.environ[SEED] = str(seed)


def requested() -> int | None:
    """The seed; None if kernels have no delays."""
    seed = os.environ.get(SEED)
    return None if seed is None else int(seed)


def install() -> None:
    """Insert delays into all kernels that this process compiles from now on."""
    from tilelang.engine.callback import register_cuda_postproc

    def with_delays(code: str, target: Any) -> str:  # noqa: ANN401, ARG001 - TileLang's
        return perturbed(code, _address())

    register_cuda_postproc(with_delays)


def cache_key() -> dict[str, Any]:
    """What tells perturbed kernels from others, and from each other, in TileLang's cache."""
    return {} if requested() is None else {"perturb": VERSION, "seed_at": _address()}


def set_seed(device: torch.device) -> None:
    """Let the kernels launched next on a GPU read the requested seed."""
    index = device.index or 0
    if index not in _memories:
        _memories[index] = SeedMemory.on(index)
    _memories[index].set(requested() or 0)


def _address() -> int:
    """Where kernels read the seed; a process without a GPU assumes the usual address."""
    return next((memory.address for memory in _memories.values()), ADDRESS)


# Delays before and after the synchronization points of CUDA source --------------------------------
#
# A delay stands on a line of its own between two statements, and depends on the seed, its number in
# the source (the site), the block, the warp, and how often the warp has passed it. Lanes of a warp
# have the same delay, so that they stay together for `wgmma` and `ldmatrix`. There is none between
# `wgmma.fence` and `commit_group`: the compiler would wait for every product by itself.
#
# In a kernel with mbarriers the warps of a warp group have the same delay. TileLang lets each warp
# of a producer wait for a free stage, and one of them load it: a warp that is two phases late takes
# the second for the first, and waits for ever. Delays are counted in cycles for that reason:
# `nanosleep` takes up to twice its time.

VERSION = 3
"""Part of the key of compiled kernels; raise it with any change of what is inserted."""

_KERNEL = re.compile(r'extern "C" __global__ .*\{$')
_SYNCHRONIZES = re.compile(
    r"""(?x)
    __syncthreads\( | __syncwarp\( | tl::__sync_ | __threadfence
    | tl::fence_(?!operand) | tl::cp_async_ | tl::tma_(?:load|store)
    | tl::warpgroup_(?:arrive|wait) | tl::wait_wgmma | tl::cluster_
    | (?:tl::)?(?:mbarrier_|Atomic|AllReduce<)
    | \w+(?:\[.*\])?\.(?:wait|arrive\w*|expect_transaction)\(
    """
)
"""Calls that begin a statement, or stand behind an `=`."""
_PHASES = re.compile(r"\.wait\(|mbarrier_wait\(")
_WARP, _GROUP = 32, 128
"""Threads that have the same delay."""
_CALL = re.compile(r"^\s*(?:[^=(]+ = )?(?P<call>\S.*);$")
_LANES = re.compile(r"elect|threadIdx.*(?:==|[&%] ?\(?(?:[1-9]|[12]\d|3[01])\)?\b)")
"""A condition that parts the lanes of a warp, as do thread numbers off a multiple of 32."""
_THREAD_NUMBER = re.compile(
    r"(\d+) (?:<=|<|>=|>) \(*\(?int\)?\)?threadIdx|threadIdx\.x\)+ [<>]=? (\d+)"
)

DELAYS = """
// Delays of tlmatrix --perturb: what is slow, and how long, follows from a seed.
static __device__ __forceinline__ unsigned tlm_mix(unsigned a, unsigned b) {
  unsigned h = a * 0x9E3779B1u ^ (b + 0x85EBCA6Bu);
  h = (h ^ (h >> 16)) * 0x7FEB352Du;
  h = (h ^ (h >> 15)) * 0x846CA68Bu;
  return h ^ (h >> 16);
}
static __device__ __forceinline__ unsigned tlm_seed() {
  return *(const volatile unsigned *)0x%(address)xull;
}
static __device__ __forceinline__ void tlm_delay(unsigned seed, unsigned site, unsigned count) {
  if (seed == 0) return;
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned warp = thread / %(unit)d, group = thread / 128;
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const bool entry = site == 0;
  // A block, a warp group, a warp, or one of these at a site.
  const bool slow = tlm_mix(seed + 1, block) %% 4 == 0 || tlm_mix(seed + 2, group) %% 3 == 0 ||
                    tlm_mix(seed + 3, warp) %% 8 == 0 || tlm_mix(seed + 4, site) %% 8 == 0 ||
                    tlm_mix(seed + 5, site * 64 + group) %% 4 == 0 ||
                    tlm_mix(seed + 6, site * 64 + warp) %% 8 == 0;
  const unsigned event = tlm_mix(tlm_mix(seed + 7, site * 64 + warp), block * 4096 + count);
  const unsigned rare = (1u << (tlm_mix(seed, 8) %% 4)) - 1;  // every time, or 1 of 2, 4 or 8
  if (!slow || (event >> 8 & rare) != 0) return;
  const unsigned most = 1024u << (tlm_mix(seed, 9) %% 6 + (entry ? 3 : 0));  // 0.6 to 19 us
  const unsigned delay = most / 2 + (event >> 11) %% (most / 2);
  for (const long long end = clock64() + delay; clock64() < end;) {
  }
}
"""


def perturbed(source: str, address: int) -> str:
    """The CUDA source of kernels with delays that read the seed at `address`."""
    unit = _GROUP if _PHASES.search(source) else _WARP
    return "\n".join(_lines(source.split("\n"), address, unit))


def _lines(lines: list[str], address: int, unit: int) -> Iterator[str]:
    site = 0
    parted: list[bool] = []
    """Of each open brace of a kernel, whether some lanes of a warp alone may be inside."""
    issuing = delayed = declared = False
    for line in lines:
        if not parted:
            begins = _KERNEL.match(line)
            if begins and not declared:
                yield DELAYS % {"address": address, "unit": unit}
                declared = True
            yield line
            if begins:
                parted.append(False)
                yield "  const unsigned tlm_s = tlm_seed(); unsigned tlm_n = 0;"
                yield "  tlm_delay(tlm_s, 0, 0);"
            continue
        of_if = parted.pop() if line.lstrip().startswith("}") else False
        if line.endswith("{"):
            parted.append(any(parted) or _parts_lanes(line) or (of_if and "else" in line))
        here = _is_synchronization(line)
        # Lanes that skip a delay do not count it, so those inside must not either.
        delay = "  tlm_delay(tlm_s, {}, %s);" % ("tlm_n" if any(parted) else "tlm_n++")
        if here and not issuing and not delayed:
            site += 1
            yield delay.format(site)
        yield line
        issuing = (issuing or "tl::warpgroup_arrive(" in line) and "commit_batch(" not in line
        delayed = here and not issuing
        if delayed:
            site += 1
            yield delay.format(site)


def _is_synchronization(line: str) -> bool:
    found = _CALL.match(line)
    return found is not None and _SYNCHRONIZES.match(found["call"]) is not None


def _parts_lanes(line: str) -> bool:
    """Whether a line begins statements of some lanes of a warp alone."""
    if "threadIdx" not in line and "elect" not in line:
        return False
    numbers = [int(number) for pair in _THREAD_NUMBER.findall(line) for number in pair if number]
    return bool(_LANES.search(line)) or any(number % 32 for number in numbers)
