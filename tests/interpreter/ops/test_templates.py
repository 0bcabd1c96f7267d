"""Functions of TileLang's own CUDA sources: fast dequantization, DP4A."""

import numpy as np
import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")

THREADS = 32
I4 = "0x000f000f isSigned ? 0x64086408 : 0x64006400 i4s >> (4 * i)"
I2 = "0x03030303 i2b >> (2 * i) 0x02020202"
FP4 = "prmt.b32 %13, %4, 0, 0x0123 0b10000001110000001000000111000000 0x7e807e80"


def decoded(name, source, out, packed, elements, *count):
    """What a decoder makes of the bytes of each thread."""
    size = packed.shape[1]

    @jit_kernel
    def kernel(X: T.Tensor((THREADS, size), "uint8"), Y: T.Tensor((THREADS, elements), out)):
        with T.Kernel(1, threads=THREADS):
            T.import_source(source)
            tx = T.get_thread_binding()
            mine = T.alloc_local((size,), "uint8")
            made = T.alloc_local((elements,), out)
            for k in T.vectorized(size):
                mine[k] = X[tx, k]
            T.call_extern("handle", name, T.access_ptr(mine, "r"), T.access_ptr(made, "w"), *count)
            for k in T.vectorized(elements):
                Y[tx, k] = made[k]

    y = torch.empty(THREADS, elements, dtype=getattr(torch, out))
    kernel()(packed, y)
    return y


def words_of(packed):
    return packed.numpy().view("<u4").astype(np.int64)


@pytest.mark.parametrize(("name", "offset"), [("decode_i4u_to_f16", 0), ("decode_i4s_to_f16", 8)])
def test_nibbles_become_halves(name, offset):
    packed = torch.randint(0, 256, (THREADS, 4), dtype=torch.uint8)
    got = decoded(name, I4, "float16", packed, 8, 8)
    # The function stores pairs: (word >> 4 * i) & 0x000f000f.
    pairs = words_of(packed) >> (4 * np.arange(4)) & 0x000F000F
    expected = np.stack([pairs & 0xFFFF, pairs >> 16], -1).reshape(THREADS, 8) - offset
    assert got.numpy().tolist() == expected.tolist()


@pytest.mark.parametrize(("name", "offset"), [("decode_i2u_to_i8s", 0), ("decode_i2s_to_i8s", 2)])
def test_pairs_of_bits_become_bytes(name, offset):
    packed = torch.randint(0, 256, (THREADS, 4), dtype=torch.uint8)
    got = decoded(name, I2, "int8", packed, 16)
    quads = (words_of(packed) >> (2 * np.arange(4)) & 0x03030303).astype("<u4")
    expected = quads.view(np.int8).reshape(THREADS, 16).astype(int) - offset
    assert got.numpy().tolist() == expected.tolist()


def twiddled(word):
    """The eight numbers of a word, by the instructions of the source."""
    word = int.from_bytes(int(word).to_bytes(4, "little"), "big")
    mask = 0b10000001110000001000000111000000
    last = (word << 1) & 0x80008000 | (word >> 3) & 0x01800180 | (word >> 7) & 0x00400040
    pairs = [word & mask, (word << 3) & mask, (word << 6) & mask, last]
    halves = [[pair >> 16 & 0xFFFF for pair in pairs], [pair & 0xFFFF for pair in pairs]]
    bits = np.array(halves, dtype=np.uint16).reshape(-1).view(np.int16)
    return torch.from_numpy(bits).view(torch.bfloat16).float() * 2.0**126


def test_twiddled_float4_becomes_bfloat16():
    packed = torch.randint(0, 256, (THREADS, 8), dtype=torch.uint8)
    got = decoded("decode_fp4_to_bf16_twiddling", FP4, "bfloat16", packed, 16, 2)
    expected = torch.stack([torch.cat([twiddled(w) for w in row]) for row in words_of(packed)])
    assert torch.equal(got.float(), expected)
    assert set(got.float().abs().unique().tolist()) <= {0, 0.5, 1, 1.5, 2, 3, 4, 6}


def test_a_decoder_of_the_users_own_is_refused():
    packed = torch.zeros(THREADS, 4, dtype=torch.uint8)
    with pytest.raises(Unsupported, match="decode_i4u_to_f16"):
        decoded("decode_i4u_to_f16", "something else", "float16", packed, 8, 8)


@jit_kernel(A="i8[THREADS, 2, 8]", B="i8[THREADS, 8]", C="i32[THREADS, 2]", out_idx=[-1])
def dotted(A, B, C):
    with T.Kernel(1, threads=THREADS):
        tx = T.get_thread_binding()
        a = T.alloc_local((2, 8), "int8")
        b = T.alloc_local((8,), "int8")
        c = T.alloc_local((2,), "int32")
        for i in T.serial(8):
            b[i] = B[tx, i]
            for j in T.serial(2):
                a[j, i] = A[tx, j, i]
        for j in T.serial(2):
            c[j] = 100
            for i in T.serial(2):
                if tx >= 4:
                    T.dp4a(a[j, 4 * i], b[4 * i], c[j])
            C[tx, j] = c[j]


def test_dp4a_adds_four_products_in_each_active_thread():
    a = torch.randint(-128, 128, (THREADS, 2, 8), dtype=torch.int8)
    b = torch.randint(-128, 128, (THREADS, 8), dtype=torch.int8)
    expected = 100 + (a.int() * b.int()[:, None]).sum(-1, dtype=torch.int32)
    expected[:4] = 100
    assert torch.equal(dotted()(a, b), expected)
