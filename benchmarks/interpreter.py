"""Speed of interpreted kernels: causal flash attention, against Triton's interpreter and SDPA.

    python benchmarks/interpreter.py

One process, one thread, the same shapes and tiles for all: batch 1, 4 heads, head dim 64,
float16, tiles of 64 x 64; "sanitized" is with all default sanitizers. Then the project's packed
attention, forward and backward, sanitized with declared sequences; and the cost by number of tiles.
Triton is timed if it is installed. Triton 3.5's interpreter fails with numpy 2.4; it works with
2.2.
"""

import os
import time

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import varlen_attention

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

HEADS, DIM, BLOCK = 4, 64, 64
LENGTHS = (200, 1024)
PACKED = ((100, 60, 200), (17, 64, 1), (1000, 24))
GROWING = (128, 256, 512, 1024, 2048)


@tilelang.jit(out_idx=[3])
def tilelang_forward(  # noqa: ANN201  # a JIT kernel
    seq: int, block_m: int = BLOCK, block_n: int = BLOCK
):
    """Causal flash attention in TileLang: q, k, v and out are [1, heads, seq, dim]."""
    scale = DIM**-0.5 * 1.4426950408889634
    shape = (1, HEADS, seq, DIM)

    @T.prim_func
    def forward(  # noqa: ANN202  # a PrimFunc
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        Out: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(T.ceildiv(seq, block_m), HEADS, 1, threads=128) as (bx, by, bz):
            q = T.alloc_shared((block_m, DIM), "float16")
            k = T.alloc_shared((block_n, DIM), "float16")
            v = T.alloc_shared((block_n, DIM), "float16")
            out = T.alloc_shared((block_m, DIM), "float16")
            s = T.alloc_fragment((block_m, block_n), "float32")
            p = T.alloc_fragment((block_m, block_n), "float16")
            acc = T.alloc_fragment((block_m, DIM), "float32")
            m = T.alloc_fragment((block_m,), "float32")
            m_old = T.alloc_fragment((block_m,), "float32")
            alpha = T.alloc_fragment((block_m,), "float32")
            row = T.alloc_fragment((block_m,), "float32")
            norm = T.alloc_fragment((block_m,), "float32")
            T.copy(Q[bz, by, bx * block_m : (bx + 1) * block_m, :], q)
            T.fill(acc, 0)
            T.fill(norm, 0)
            T.fill(m, -T.infinity("float32"))
            stop = T.min(T.ceildiv(seq, block_n), T.ceildiv((bx + 1) * block_m, block_n))
            for kb in T.Pipelined(stop, num_stages=1):
                T.copy(K[bz, by, kb * block_n : (kb + 1) * block_n, :], k)
                for i, j in T.Parallel(block_m, block_n):
                    s[i, j] = T.if_then_else(
                        bx * block_m + i >= kb * block_n + j, 0, -T.infinity("float32")
                    )
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(m, m_old)
                T.reduce_max(s, m, dim=1, clear=False)
                for i in T.Parallel(block_m):
                    alpha[i] = T.exp2(m_old[i] * scale - m[i] * scale)
                for i, j in T.Parallel(block_m, block_n):
                    s[i, j] = T.exp2(s[i, j] * scale - m[i] * scale)
                T.reduce_sum(s, row, dim=1)
                for i in T.Parallel(block_m):
                    norm[i] = norm[i] * alpha[i] + row[i]
                T.copy(s, p)
                for i, j in T.Parallel(block_m, DIM):
                    acc[i, j] *= alpha[i]
                T.copy(V[bz, by, kb * block_n : (kb + 1) * block_n, :], v)
                T.gemm(p, v, acc, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_m, DIM):
                acc[i, j] /= norm[i]
            T.copy(acc, out)
            T.copy(out, Out[bz, by, bx * block_m : (bx + 1) * block_m, :])

    return forward


if triton is not None:

    @triton.jit
    def _triton_forward(  # noqa: ANN202  # Triton's annotations are compile-time constants
        Q,  # noqa: ANN001
        K,  # noqa: ANN001
        V,  # noqa: ANN001
        Out,  # noqa: ANN001
        seq,  # noqa: ANN001
        scale,  # noqa: ANN001
        block: tl.constexpr,
        dim: tl.constexpr,
    ):
        bx, by = tl.program_id(0), tl.program_id(1)
        base = by * seq * dim
        rows = bx * block + tl.arange(0, block)
        columns = tl.arange(0, dim)
        tile = base + rows[:, None] * dim + columns[None, :]
        q = tl.load(Q + tile, mask=rows[:, None] < seq, other=0.0)
        m = tl.full([block], float("-inf"), tl.float32)
        norm = tl.zeros([block], tl.float32)
        acc = tl.zeros([block, dim], tl.float32)
        for start in range(0, tl.minimum((bx + 1) * block, seq), block):
            keys = start + tl.arange(0, block)
            where = base + keys[:, None] * dim + columns[None, :]
            k = tl.load(K + where, mask=keys[:, None] < seq, other=0.0)
            s = tl.dot(q, tl.trans(k)) * scale
            seen = (rows[:, None] >= keys[None, :]) & (keys[None, :] < seq)
            s = tl.where(seen, s, float("-inf"))
            m_new = tl.maximum(m, tl.max(s, 1))
            alpha = tl.exp2(m - m_new)
            p = tl.exp2(s - m_new[:, None])
            norm = norm * alpha + tl.sum(p, 1)
            v = tl.load(V + where, mask=keys[:, None] < seq, other=0.0)
            acc = acc * alpha[:, None] + tl.dot(p.to(tl.float16), v)
            m = m_new
        tl.store(Out + tile, (acc / norm[:, None]).to(tl.float16), mask=rows[:, None] < seq)


def triton_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal flash attention in Triton, run by its interpreter."""
    out = torch.empty_like(q)
    seq = q.shape[2]
    grid = ((seq + BLOCK - 1) // BLOCK, HEADS)
    _triton_forward[grid](q, k, v, out, seq, DIM**-0.5 * 1.4426950408889634, BLOCK, DIM)
    return out


def milliseconds(call, seconds: float = 1.5) -> float:  # noqa: ANN001  # any callable
    """The best time of a call, which is least affected by other processes."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def packed() -> None:
    """Print the cost of the sanitizers in packed attention, forward and backward."""
    print("packed attention, causal, groups of 2, ms a call, forward + backward")
    print(f"{'lengths':>16} {'backward':>8} {'interpreter':>12} {'sanitized':>10} {'ratio':>6}")
    for lengths in PACKED:
        total, cu = sum(lengths), torch.tensor([0, *lengths]).cumsum(0).int()
        shapes = ((total, HEADS, DIM), (total, HEADS // 2, DIM), (total, HEADS // 2, DIM))
        inputs = [torch.randn(shape).half().requires_grad_() for shape in shapes]
        sequences = dict.fromkeys(("q", "k", "v", "out", "do", "dq", "dq_sum", "dk_sum"), cu)
        sequences |= {"dv_sum": cu}
        sequences |= dict.fromkeys(("lse", "dk_parts", "dv_parts"), (cu, 1))
        for backward in ("atomic", "split"):

            def call(
                inputs: list[torch.Tensor] = inputs,
                cu: torch.Tensor = cu,
                backward: str = backward,
            ) -> None:
                out, _ = varlen_attention(*inputs, cu, cu, causal=True, backward=backward)
                torch.autograd.grad(out, inputs, torch.ones_like(out))

            with interpret():
                ours = milliseconds(call)
            with interpret(sanitize=True, sequences=sequences) as run:
                sanitized = milliseconds(call)
                if run.reports:
                    raise SystemExit(f"false positive: {run.reports[0]}")
            shown = ", ".join(map(str, lengths))
            print(
                f"{shown:>16} {backward:>8} {ours:12.2f} {sanitized:10.2f} {sanitized / ours:6.2f}"
            )


def growth() -> None:
    """Print the time of the causal forward by its number of tiles."""
    print(f"{'sequence':>8} {'tiles':>6} {'ms':>8} {'us a tile':>10}")
    for seq in GROWING:
        q, k, v = (torch.randn(1, HEADS, seq, DIM).half() for _ in range(3))
        rows = seq // BLOCK
        tiles = HEADS * rows * (rows + 1) // 2
        with interpret():
            kernel = tilelang_forward(seq)
            ours = milliseconds(lambda: kernel(q, k, v))  # noqa: B023  # called at once
        print(f"{seq:8d} {tiles:6d} {ours:8.2f} {1e3 * ours / tiles:10.1f}")


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"causal forward, batch 1, {HEADS} heads, head dim {DIM}, float16, ms a call")
    header = f"{'sequence':>8} {'interpreter':>12} {'sanitized':>10} {'SDPA float32':>13}"
    print(header + f" {'Triton interpreter':>19} {'ratios':>12}")
    for seq in LENGTHS:
        q, k, v = (torch.randn(1, HEADS, seq, DIM).half() for _ in range(3))
        wide = [x.float() for x in (q, k, v)]

        def sdpa(wide: list[torch.Tensor] = wide) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)

        with interpret():
            kernel = tilelang_forward(seq)
            error = (kernel(q, k, v).float() - sdpa()).abs().max().item()
            if error > 5e-3:
                raise SystemExit(f"the interpreted kernel has an error of {error}, at most 5e-3")
            ours = milliseconds(lambda: kernel(q, k, v))  # noqa: B023  # called at once
        with interpret(sanitize=True) as run:
            sanitized = milliseconds(lambda: kernel(q, k, v))  # noqa: B023  # called at once
            if run.reports:
                raise SystemExit(f"false positive: {run.reports[0]}")
        line = f"{seq:8d} {ours:12.2f} {sanitized:10.2f} {milliseconds(sdpa):13.2f}"
        if triton is None:
            print(line + f" {'not installed':>19}")
            continue
        error = (triton_forward(q, k, v).float() - sdpa()).abs().max().item()
        if error > 5e-3:
            raise SystemExit(f"the Triton kernel has an error of {error}, at most 5e-3")
        theirs = milliseconds(lambda: triton_forward(q, k, v))  # noqa: B023  # called at once
        print(line + f" {theirs:19.1f} {theirs / ours:6.0f}x {theirs / sanitized:3.0f}x")
    packed()
    growth()
    with interpret():
        start = time.perf_counter()
        tilelang_forward(333)
        traced = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(1000):
            tilelang_forward(333)
        again = (time.perf_counter() - start) / 1000
    print(f"first call of a factory {traced * 1e3:.0f} ms, later calls {again * 1e6:.1f} us")


if __name__ == "__main__":
    main()
