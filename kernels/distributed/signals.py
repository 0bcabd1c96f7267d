"""Flags that blocks of one GPU raise and blocks of another wait for, in TileLang kernels.

TileLang's own `T.atomic_*` are of device scope in the code they become, so another GPU need not see
in order what they order. These are of the scope that their name says, `gpu` or `sys`, and each is
one instruction of PTX's memory model; flags are int32:

==============================================  ================================================
`tlm_load_{relaxed|acquire}_{scope}`            ld.relaxed, ld.acquire
`tlm_store_{relaxed|release}_{scope}`           st.relaxed, st.release
`tlm_fetch_add_{order}_{scope}`                 atom.add, relaxed, acquire, release or acq_rel;
                                                gives the value before
`tlm_wait_{ge|eq}_{relaxed|acquire}_{scope}`    loads until the flag is at least, or equals, a value
`tlm_given_ge_acquire_{scope}`                  a number, and if asked to behind such a wait
`tlm_block_store_{order}_{scope}`,              all threads meet, then the first one does it: what
`tlm_block_fetch_add_{order}_{scope}`           any thread of the block wrote before is released
==============================================  ================================================

Loads and waits are made by every thread that meets them, so each has acquired what it reads next.
A store or an addition of a block is one: use `tlm_block_*`, through `post` and `add`.

A kernel includes them by `T.import_source(signals.source(threads))` inside its `T.Kernel`, and
calls them with the address of a flag, or through the functions here:

    signals.wait(flags, owner, epoch)         # acquire, system
    row = signals.given(flags, owner, epoch, row, first)
    signals.post(flags, rank, epoch)          # release, system
    signals.add(flags, rank, 1)

- Flags only grow. Who waits asks for *at least* a value (`ge`), never for equality with a flag that
  somebody resets: a rank that runs ahead may have raised it again. The comparison is of the
  difference, as sequence numbers are compared, so a flag may overflow.
- A wait ends with `fence.proxy.async`, for the copy engine of the multiprocessor (TMA) reads by
  another path than threads do.
- TileLang may split a kernel whose loads are pipelined into roles: with `threads=256` it launches
  384 threads, of which the first 128 only load, and leaves what follows the loop to the other 256.
  `__syncthreads` and "thread 0" are then wrong: that thread never gets there, and the flag is never
  raised. So `tlm_block_*` meet at a named barrier of as many threads as `T.Kernel` was given
  (`source(threads)`), and the last thread of the block raises the flag: it always takes part.
  Waits stand before the loop, where the roles are not split yet. Inside of it a statement is left
  to the threads that multiply, and those that load would not wait: there the row to load must be
  `given`. That is an expression, which goes where it is needed and nowhere else. (Read in what
  TileLang 0.1.15 makes of such kernels; `test_assembly.py` and `test_sequence_assembly.py` in
  `tests/kernels/distributed` hold it.)
- What arrives while a kernel runs must not be read as what never changes: TileLang declares tensors
  that a kernel only reads `const __restrict__`, and the compiler then loads them by a path that is
  not coherent, or early. Name such tensors in `T.annotate_restrict_buffers(...)`. What TMA loads is
  not concerned: it is loaded as asked, behind the wait.
"""

import functools

import tilelang.language as T

__all__ = ["add", "given", "load", "post", "source", "wait"]

_SCOPES = ("gpu", "sys")
_LOADS = ("relaxed", "acquire")
_STORES = ("relaxed", "release")
_ADDITIONS = ("relaxed", "acquire", "release", "acq_rel")
_REACHED = {
    "ge": "static_cast<int>(static_cast<unsigned>(seen) - static_cast<unsigned>(value)) >= 0",
    "eq": "seen == value",
}

_LOAD = """
__device__ __forceinline__ int tlm_load_{order}_{scope}(const int *flag) {{
  int seen;
  asm volatile("ld.{order}.{scope}.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  return seen;
}}
"""
_WAIT = """
__device__ __forceinline__ int tlm_wait_{compare}_{order}_{scope}(const int *flag, int value) {{
  int seen = tlm_load_{order}_{scope}(flag);
  while (!({reached})) {{
    __nanosleep(40);
    seen = tlm_load_{order}_{scope}(flag);
  }}
  tlm_fence_proxy_async();
  return seen;
}}
"""
_GIVEN = """
__device__ __forceinline__ int tlm_given_ge_acquire_{scope}(
    const int *flag, int value, int number, bool waits) {{
  if (waits) tlm_wait_ge_acquire_{scope}(flag, value);
  return number;
}}
"""
_STORE = """
__device__ __forceinline__ int tlm_store_{order}_{scope}(int *flag, int value) {{
  asm volatile("st.{order}.{scope}.global.s32 [%0], %1;" : : "l"(flag), "r"(value) : "memory");
  return value;
}}
__device__ __forceinline__ int tlm_block_store_{order}_{scope}(int *flag, int value) {{
  tlm_block_meet();
  if (threadIdx.x == blockDim.x - 1) tlm_store_{order}_{scope}(flag, value);
  return value;
}}
"""
_ADD = """
__device__ __forceinline__ int tlm_fetch_add_{order}_{scope}(int *flag, int value) {{
  int before;
  asm volatile("atom.add.{order}.{scope}.global.s32 %0, [%1], %2;"
               : "=r"(before) : "l"(flag), "r"(value) : "memory");
  return before;
}}
__device__ __forceinline__ int tlm_block_fetch_add_{order}_{scope}(int *flag, int value) {{
  tlm_block_meet();
  if (threadIdx.x == blockDim.x - 1) tlm_fetch_add_{order}_{scope}(flag, value);
  return value;
}}
"""
_FENCE = """
__device__ __forceinline__ void tlm_fence_proxy_async() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
"""


_MEET = """
__device__ __forceinline__ void tlm_block_meet() {{
  asm volatile("bar.sync {barrier}, {threads};" ::: "memory");
}}
"""
_BARRIER = 15
"""The last of a block's named barriers; TileLang counts its own from the first."""


@functools.cache
def source(threads: int) -> str:
    """The CUDA source that `T.import_source` takes in a kernel of so many `threads` a block.

    Raises:
        ValueError: threads that are no whole warps, 32 to 1024.
    """
    if threads % 32 or not 32 <= threads <= 1024:
        raise ValueError(f"threads must be a multiple of 32, 32 to 1024, got {threads}")
    parts = ["#ifndef TLM_SIGNALS", "#define TLM_SIGNALS", _FENCE]
    parts.append(_MEET.format(barrier=_BARRIER, threads=threads))
    for scope in _SCOPES:
        parts += [_LOAD.format(order=order, scope=scope) for order in _LOADS]
        parts += [
            _WAIT.format(compare=compare, reached=reached, order=order, scope=scope)
            for compare, reached in _REACHED.items()
            for order in _LOADS
        ]
        parts.append(_GIVEN.format(scope=scope))
        parts += [_STORE.format(order=order, scope=scope) for order in _STORES]
        parts += [_ADD.format(order=order, scope=scope) for order in _ADDITIONS]
    return "\n".join([*parts, "#endif", ""])


def load(flags, index, order="acquire", scope="sys"):
    """The value of `flags[index]`, an expression."""
    return T.call_extern("int32", f"tlm_load_{order}_{scope}", T.address_of(flags[index]))


def wait(flags, index, value, order="acquire", scope="sys", compare="ge"):
    """Every thread waits until `flags[index]` is at least `value` (or with `eq` equals it)."""
    name = f"tlm_wait_{compare}_{order}_{scope}"
    return T.call_extern("int32", name, T.address_of(flags[index]), value)


def given(flags, index, value, number, waits, scope="sys"):
    """The int32 `number`, an expression: where `waits`, when `flags[index]` is at least `value`.

    Whoever needs the number waits, as with `wait`, acquiring.
    """
    name = f"tlm_given_ge_acquire_{scope}"
    flag = T.address_of(flags[index])
    return T.call_pure_extern("int32", name, flag, value, number, waits)


def post(flags, index, value, order="release", scope="sys"):
    """`flags[index] = value` once for the block, after all that its threads did before."""
    name = f"tlm_block_store_{order}_{scope}"
    return T.call_extern("int32", name, T.address_of(flags[index]), value)


def add(flags, index, value, order="release", scope="sys"):
    """`flags[index] += value` once for the block, after all that its threads did before."""
    name = f"tlm_block_fetch_add_{order}_{scope}"
    return T.call_extern("int32", name, T.address_of(flags[index]), value)
