"""Flags between the blocks of different GPUs, for TileLang kernels.

TileLang's `T.atomic_*` compile to device scope, which does not order memory accesses for other
GPUs. These functions have the scope in their name, `gpu` or `sys`, and each is one instruction of
the PTX memory model. Flags are int32:

==============================================  ================================================
`tlm_load_{relaxed|acquire}_{scope}`            ld.relaxed, ld.acquire
`tlm_store_{relaxed|release}_{scope}`           st.relaxed, st.release
`tlm_fetch_add_{order}_{scope}`                 atom.add: relaxed, acquire, release or acq_rel;
                                                returns the previous value
`tlm_wait_{ge|eq}_{relaxed|acquire}_{scope}`    spins until the flag is at least, or equals, a value
`tlm_given_ge_acquire_{scope}`                  returns a number, after such a wait if requested
`tlm_block_store_{order}_{scope}`,              block barrier, then one thread stores or adds:
`tlm_block_fetch_add_{order}_{scope}`           releases the earlier writes of all threads
==============================================  ================================================

All threads execute loads and waits, so each thread acquires what it reads next. A store or an
addition is done once per block by `tlm_block_*`, through `post` and `add`; or by every thread that
executes it, through `st` and `atom_add`, which returns the previous value.

A kernel includes them with `T.import_source(signals.source(threads))` inside its `T.Kernel`, and
calls them with the address of a flag, or through the functions here:

    signals.wait(flags, owner, epoch)         # acquire, system
    row = signals.given(flags, owner, epoch, row, first)
    signals.post(flags, rank, epoch)          # release, system
    signals.add(flags, rank, 1)

- Flags only increase. Wait for *at least* a value (`ge`), never for equality with a flag that is
  reset: a rank that is ahead may have increased it again. `ge` compares the signed difference, as
  TCP sequence numbers are compared, so flags may wrap around.
- A wait ends with `fence.proxy.async`, since TMA reads through another proxy than threads do.
- TileLang may warp-specialize a kernel with pipelined loads: with `threads=256` it launches 384
  threads, of which the first 128 only load, and the other 256 execute what follows the loop.
  `__syncthreads` and "thread 0" would then be wrong: thread 0 never gets there, and the flag is
  never set. `tlm_block_*` therefore synchronize on a named barrier of the `T.Kernel` threads
  (`source(threads)`), and the last thread of the block, always a consumer, sets the flag.
  Waits must precede the loop, where warp roles are not split yet. Inside the loop TileLang assigns
  statements to the consumers, and the producers would not wait: there use `given` for the row to
  load, an expression that is evaluated only where it is used. (Verified on the code of TileLang
  0.1.15 by `test_assembly.py` and `test_sequence_assembly.py` in `tests/kernels/distributed`.)
- TileLang declares tensors that a kernel only reads as `const __restrict__`, and the compiler may
  load them early or through the non-coherent cache. Name tensors that arrive while the kernel runs
  in `T.annotate_restrict_buffers(...)`. TMA loads are not affected: they stay after the wait.
"""

import functools

import tilelang.language as T

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
"""The last named barrier of a block; TileLang allocates its own from the first."""


@functools.cache
def source(threads: int) -> str:
    """The CUDA source for `T.import_source`, in a kernel of `threads` threads per block.

    Raises:
        ValueError: threads is not a multiple of 32 from 32 to 1024.
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


def _function(action: str, orders: tuple[str, ...], order: str, scope: str) -> str:
    """The name of a function of `source`.

    Raises:
        ValueError: an order that the instruction does not have, or an unknown scope.
    """
    if order not in orders:
        raise ValueError(f"order must be one of {', '.join(orders)}, got {order!r}")
    if scope not in _SCOPES:
        raise ValueError(f"scope must be one of {', '.join(_SCOPES)}, got {scope!r}")
    return f"tlm_{action}_{order}_{scope}"


def load(flags, index, order="acquire", scope="sys"):
    """The value of `flags[index]`, as an expression."""
    return T.call_extern(
        "int32", _function("load", _LOADS, order, scope), T.address_of(flags[index])
    )


def wait(flags, index, value, order="acquire", scope="sys", compare="ge"):
    """Every thread waits until `flags[index]` is at least `value` (or equals it, with `eq`)."""
    if compare not in _REACHED:
        raise ValueError(f"compare must be one of {', '.join(_REACHED)}, got {compare!r}")
    name = _function(f"wait_{compare}", _LOADS, order, scope)
    return T.call_extern("int32", name, T.address_of(flags[index]), value)


def given(flags, index, value, number, waits, scope="sys"):
    """The int32 `number`, as an expression that first waits for the flag if `waits`.

    Every thread that evaluates it waits until `flags[index]` is at least `value`, with acquire
    semantics.
    """
    name = _function("given_ge", ("acquire",), "acquire", scope)
    flag = T.address_of(flags[index])
    return T.call_pure_extern("int32", name, flag, value, number, waits)


def post(flags, index, value, order="release", scope="sys"):
    """`flags[index] = value`, once per block, after all earlier writes of its threads."""
    name = _function("block_store", _STORES, order, scope)
    return T.call_extern("int32", name, T.address_of(flags[index]), value)


def add(flags, index, value, order="release", scope="sys"):
    """`flags[index] += value`, once per block, after all earlier writes of its threads."""
    name = _function("block_fetch_add", _ADDITIONS, order, scope)
    return T.call_extern("int32", name, T.address_of(flags[index]), value)


def st(flags, index, value, order="release", scope="sys"):
    """`flags[index] = value` by every thread that executes it.

    A release orders the writes of that thread alone; use `post` for those of its block.
    """
    name = _function("store", _STORES, order, scope)
    return T.call_extern("int32", name, T.address_of(flags[index]), value)


def atom_add(flags, index, value, order="relaxed", scope="sys"):
    """Add to `flags[index]` by every thread that executes it; an expression, the previous value.

    Orders apply to the accesses of that thread alone; use `add` to release those of its block.
    """
    name = _function("fetch_add", _ADDITIONS, order, scope)
    return T.call_extern("int32", name, T.address_of(flags[index]), value)
