"""Products of factors of 4 bits whose groups of 16 elements have a scale."""

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import InterpreterError, Unsupported, interpret

pytestmark = pytest.mark.usefixtures("interpreted")

M, N, K, BLOCK_K = 64, 96, 256, 128
MAGNITUDES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def four_bits(rows):
    """Values of float4_e2m1fn, and the bytes that hold them, the first of two lowest."""
    codes = torch.randint(0, 16, (rows, K))
    values = MAGNITUDES[codes & 7] * torch.where(codes > 7, -1, 1)
    return values, (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)


def scales(rows):
    """Scales of each 16 elements, and the words that hold four of them, the first lowest."""
    values = 2.0 ** torch.randint(-6, 4, (rows, K // 16)) * (1 + torch.randint(0, 8, (1,)) / 8)
    codes = values.to(torch.float8_e4m3fn).view(torch.uint8).contiguous()
    return values.repeat_interleave(16, 1), codes.view(torch.uint32)


def chunked(words, rows):
    """Words of tiles of BLOCK_K columns in the order `blockscaled_chunk_kmajor`."""
    tile = torch.empty(K // BLOCK_K, rows * BLOCK_K // 64, dtype=torch.int64)
    for k in range(K // 64):
        for r in range(rows):
            place = k % 2 * rows + r % 32 * (rows // 32) + r // 32
            tile[k // 2, place] = words[r, k].item()
    return tile.view(-1, BLOCK_K // 64).to(torch.uint32)


@tilelang.jit
def product(layout, clear=False, granularity=16, start=0):
    words = BLOCK_K // 64 if layout == "blockscaled_chunk_kmajor" else K // 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float4_e2m1fn"),
        B: T.Tensor((N, K), "float4_e2m1fn"),
        SFA: T.Tensor((M * K // 64 // words, words), "uint32"),
        SFB: T.Tensor((N * K // 64 // words, words), "uint32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M, BLOCK_K), "float4_e2m1fn")
            b = T.alloc_shared((N, BLOCK_K), "float4_e2m1fn")
            sfa = T.alloc_shared((M, words), "uint32")
            sfb = T.alloc_shared((N, words), "uint32")
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            for k in T.Pipelined(K // BLOCK_K, num_stages=2):
                T.copy(A[0, k * BLOCK_K], a)
                T.copy(B[0, k * BLOCK_K], b)
                T.copy(SFA[k * M if words == 2 else 0, 0], sfa)
                T.copy(SFB[k * N if words == 2 else 0, 0], sfb)
                T.mma_gemm_blockscaled(
                    *(a, b, c, sfa, sfb),
                    transpose_B=True,
                    clear_accum=clear,
                    k_start=start + k * BLOCK_K,
                    sf_a_granularity_k=granularity,
                    sf_b_granularity_k=granularity,
                    sf_layout=layout,
                )
            T.copy(c, C)

    return main


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("layout", ["rowmajor", "blockscaled_chunk_kmajor"])
def test_the_factors_are_multiplied_with_their_scales(layout, clear):
    (a, held_a), (b, held_b) = four_bits(M), four_bits(N)
    (sfa, words_a), (sfb, words_b) = scales(M), scales(N)
    if layout != "rowmajor":
        words_a, words_b = chunked(words_a, M), chunked(words_b, N)
    c = torch.empty(M, N)
    with interpret(arch="sm_120a"):
        product(layout, clear)(held_a, held_b, words_a, words_b, c)
    first = K - BLOCK_K if clear else 0
    left, right = ((x * s)[:, first:].double() for x, s in ((a, sfa), (b, sfb)))
    torch.testing.assert_close(c, (left @ right.T).float(), rtol=1e-6, atol=1e-3)


def test_scales_past_the_last_word_are_an_error():
    (_, a), (_, b), (_, sfa), (_, sfb) = four_bits(M), four_bits(N), scales(M), scales(N)
    with (
        interpret(arch="sm_120a"),
        pytest.raises(InterpreterError, match=r"64 rows .* from 256 on"),
    ):
        product("rowmajor", start=BLOCK_K)(a, b, sfa, sfb, torch.empty(M, N))


def test_scales_of_32_elements_are_refused():
    (_, a), (_, b), (_, sfa), (_, sfb) = four_bits(M), four_bits(N), scales(M), scales(N)
    with interpret(arch="sm_120a"), pytest.raises(Unsupported, match=r"scales of \[32, 32\]"):
        product("rowmajor", granularity=32)(a, b, sfa, sfb, torch.empty(M, N))
