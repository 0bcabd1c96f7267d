"""Products with scales of tensor memory: words come by TMA, are transposed and copied."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret, scheduled

pytestmark = pytest.mark.usefixtures("interpreted")

M, K, BLOCK_K, STAGES = 128, 256, 128, 2


@tilelang.jit
def product(columns, factor="float8_e4m3fn", blocks=1, fence=True, warp=96, granularity=32):
    """C = A @ B.T with a word of four scales for each row and 128 elements of K."""
    rows, half, pair = M * blocks, columns // blocks, blocks == 2

    @T.prim_func
    def main(
        A: T.Tensor((rows, K), "float4_e2m1fn" if "float4" in factor else factor),
        B: T.Tensor((columns, K), "float8_e5m2"),
        SFA: T.Tensor((K // BLOCK_K * rows,), "uint32"),
        SFB: T.Tensor((K // BLOCK_K * columns,), "uint32"),
        C: T.Tensor((rows, columns), "float32"),
    ):
        with T.ClusterKernel(blocks, threads=128, cluster_dims=blocks) as bx:
            a = T.alloc_shared((STAGES, M, BLOCK_K), getattr(T, factor))
            b = T.alloc_shared((STAGES, half, BLOCK_K), "float8_e5m2")
            sfa = T.alloc_shared((STAGES, M), "uint32")
            sfb = T.alloc_shared((STAGES, columns), "uint32")
            c = T.alloc_tmem([M, columns], "float32")
            sfa_tmem = T.alloc_tmem([M, 4], "uint32")
            sfb_tmem = T.alloc_tmem([M, columns // 32], "uint32")
            out = T.alloc_fragment((M, columns), "float32")
            loaded = T.alloc_barrier([32] * STAGES)
            scaled = T.alloc_cluster_barrier([32 * blocks] * STAGES)
            consumed = T.alloc_cluster_barrier([1] * STAGES)
            full = T.alloc_cluster_barrier([1])
            tx = T.get_thread_binding()
            rank = T.block_rank_in_cluster() if pair else 0
            if tx < 32:
                for k in T.serial(K // BLOCK_K):
                    s = k % STAGES
                    T.mbarrier_wait_parity(consumed[s], ((k // STAGES) & 1) ^ 1)
                    T.tma_copy(
                        A[bx * M : (bx + 1) * M, k * BLOCK_K : (k + 1) * BLOCK_K],
                        a[s, :, :],
                        barrier=loaded[s],
                    )
                    T.tma_copy(
                        B[bx * half : (bx + 1) * half, k * BLOCK_K : (k + 1) * BLOCK_K],
                        b[s, :, :],
                        barrier=loaded[s],
                    )
                    T.tma_copy(
                        SFA[k * rows + bx * M : k * rows + (bx + 1) * M],
                        sfa[s, :],
                        barrier=loaded[s],
                    )
                    T.tma_copy(SFB[k * columns : (k + 1) * columns], sfb[s, :], barrier=loaded[s])
                    T.mbarrier_arrive(loaded[s])
            elif tx < 64 and rank == 0:
                for k in T.serial(K // BLOCK_K):
                    s = k % STAGES
                    T.mbarrier_wait_parity(scaled[s], (k // STAGES) & 1)
                    T.tcgen05_cp_warpx4(sfa[s, :], sfa_tmem, use_2cta=pair)
                    T.tcgen05_cp_warpx4(sfb[s, :], sfb_tmem, use_2cta=pair)
                    T.tcgen05_gemm_blockscaled(
                        *(a[s, :, :], b[s, :, :], c, sfa_tmem, sfb_tmem),
                        transpose_B=True,
                        mbar=consumed[s],
                        clear_accum=k == 0,
                        k_start=k * BLOCK_K,
                        sf_a_granularity_k=granularity,
                        sf_b_granularity_k=granularity,
                        use_2cta=pair,
                    )
                T.tcgen05_mma_arrive(full, arrive_2cta=pair)
            elif 64 <= tx < warp:
                for k in T.serial(K // BLOCK_K):
                    s = k % STAGES
                    T.mbarrier_wait_parity(loaded[s], (k // STAGES) & 1)
                    T.tcgen05_sf_warp_transpose(sfa[s, :])
                    T.tcgen05_sf_warp_transpose(sfb[s, :])
                    if fence:
                        T.fence_proxy_async()
                    if pair:
                        T.mbarrier_arrive(scaled[s], 0)
                    else:
                        T.mbarrier_arrive(scaled[s])
            T.mbarrier_wait_parity(full, 0)
            T.copy(c, out)
            T.copy(out, C[bx * M, 0])

    return main


def scales(rows):
    """Scales of each 32 elements, and words of four of them, those of 128 elements of K first."""
    codes = torch.randint(125, 130, (rows, K // 32), dtype=torch.uint8)
    words = codes.view(torch.uint32).to(torch.int64).t().contiguous().to(torch.uint32)
    return (2.0 ** (codes.double() - 127)).repeat_interleave(32, 1), words.view(-1)


def inputs(rows, columns):
    a = torch.randint(-8, 9, (rows, K)).float().div(4).to(torch.float8_e4m3fn)
    b = torch.randint(-4, 5, (columns, K)).float().to(torch.float8_e5m2)
    (of_a, words_a), (of_b, words_b) = scales(rows), scales(columns)
    right = (a.double() * of_a) @ (b.double() * of_b).T
    return (a, b, words_a, words_b, torch.empty(rows, columns)), right.float()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "adversarial"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_the_factors_are_multiplied_with_the_scales_of_their_rows(blocks, schedule):
    columns = 128 * blocks
    arguments, right = inputs(M * blocks, columns)
    with interpret(arch="sm_100a"), scheduled(schedule, seed=5):
        product(columns, blocks=blocks)(*arguments)
    assert torch.equal(arguments[-1], right)


def test_the_synchronous_product_arrives_at_its_barrier():
    @jit_kernel(
        A="float8_e4m3fn[M, BLOCK_K]",
        B="float8_e5m2[BLOCK_K, 64]",
        SFA="u32[M]",
        SFB="u32[128]",
        C="f32[M, 64]",
        threads=128,
    )
    def kernel(A, B, SFA, SFB, C):
        a = T.alloc_shared((M, BLOCK_K), "float8_e4m3fn")
        b = T.alloc_shared((BLOCK_K, 64), "float8_e5m2")
        sf = T.alloc_shared((2, 128), "uint32")
        c = T.alloc_tmem([M, 64], "float32")
        sfa = T.alloc_tmem([M, 4], "uint32")
        sfb = T.alloc_tmem([M, 4], "uint32")
        out = T.alloc_fragment((M, 64), "float32")
        done = T.alloc_barrier([1])
        T.copy(A, a)
        T.copy(B, b)
        T.copy(SFA, sf[0, :])
        T.copy(SFB, sf[1, :])
        if T.get_thread_binding() < 32:
            T.tcgen05_sf_warp_transpose(sf[0, :])
            T.tcgen05_sf_warp_transpose(sf[1, :])
            T.fence_proxy_async()
            T.tcgen05_cp_warpx4(sf[0, :], sfa)
            T.tcgen05_cp_warpx4(sf[1, :], sfb)
        T.sync_threads()
        T.gemm_blockscaled(
            *(a, b, c, sfa, sfb),
            clear_accum=True,
            mbar=done,
            k_start=0,
            sf_a_granularity_k=32,
            sf_b_granularity_k=32,
        )
        T.mbarrier_wait_parity(done, 0)
        T.copy(c, out)
        T.copy(out, C)

    (a, b, words_a, words_b, _), _ = inputs(M, 128)
    c = torch.empty(M, 64)
    with interpret(arch="sm_100a"):
        kernel()(
            a[:, :BLOCK_K].contiguous(),
            b[:64, :BLOCK_K].t().contiguous(),
            words_a[:M],
            words_b[:128],
            c,
        )
    of_a, of_b = (
        2.0 ** (w.view(torch.uint8).view(-1, 4)[:128].double() - 127) for w in (words_a, words_b)
    )
    left = a[:, :BLOCK_K].double() * of_a.repeat_interleave(32, 1)
    right = b[:64, :BLOCK_K].double() * of_b[:64].repeat_interleave(32, 1)
    assert torch.equal(c, (left @ right.T).float())


def test_factors_of_four_bits_in_bytes():
    (_, b, words_a, words_b, c), _ = inputs(M, 128)
    codes = torch.randint(0, 16, (M, K))
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    a = magnitudes[codes & 7] * torch.where(codes > 7, -1, 1)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    words_a, words_b = (
        torch.full_like(w, 0x7F7F7F7F, dtype=torch.int64) for w in (words_a, words_b)
    )
    with interpret(arch="sm_100a"):
        product(128, "float4_e2m1_unpacked")(
            packed, b, words_a.to(torch.uint32), words_b.to(torch.uint32), c
        )
    assert torch.equal(c, a @ b.float().T)


def test_the_transpose_needs_a_fence_before_the_copy():
    for fence in (True, False):
        arguments, _ = inputs(M, 128)
        with interpret(arch="sm_100a", sanitize=True) as session:
            product(128, fence=fence)(*arguments)
        found = [report for report in session.reports if report.buffer == "sfa"]
        assert bool(found) is not fence
        for report in found:
            assert "with no T.fence_proxy_async() between them" in report.message
            assert report.hint.startswith("T.fence_proxy_async() in threads 64..95")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"warp": 128}, "T.tcgen05_sf_warp_transpose by other threads than those of one warp"),
        ({"factor": "float4_e2m1fn"}, "T.gemm_blockscaled of float4_e2m1fn and float8_e5m2"),
        ({"granularity": 16}, r"with scales of \[16, 16\] elements"),
    ],
)
def test_what_no_instruction_does_is_refused(options, what):
    arguments, _ = inputs(M, 128)
    with interpret(arch="sm_100a"), pytest.raises(Unsupported, match=what):
        product(128, **options)(*arguments)
