"""Functions of TileLang's templates that kernels call by name."""

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")

THREADS = 32


@tilelang.jit(out_idx=[-1])
def dotted():
    @T.prim_func
    def main(
        A: T.Tensor((THREADS, 2, 8), "int8"),
        B: T.Tensor((THREADS, 8), "int8"),
        C: T.Tensor((THREADS, 2), "int32"),
    ):
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

    return main


def test_dp4a_adds_four_products_in_each_active_thread():
    a = torch.randint(-128, 128, (THREADS, 2, 8), dtype=torch.int8)
    b = torch.randint(-128, 128, (THREADS, 8), dtype=torch.int8)
    expected = 100 + (a.int() * b.int()[:, None]).sum(-1, dtype=torch.int32)
    expected[:4] = 100
    assert torch.equal(dotted()(a, b), expected)


@tilelang.jit(out_idx=[-1])
def decoded(name, source, dtype, per_byte, count):
    @T.prim_func
    def main(
        P: T.Tensor((THREADS, 4), "uint8"),
        Y: T.Tensor((THREADS, 4 * per_byte), dtype),
    ):
        with T.Kernel(1, threads=THREADS):
            T.import_source(source)
            tx = T.get_thread_binding()
            packed = T.alloc_local((4,), "uint8")
            out = T.alloc_local((4 * per_byte,), dtype)
            for i in T.serial(4):
                packed[i] = P[tx, i]
            T.call_extern("handle", name, T.access_ptr(packed, "r"), T.access_ptr(out, "w"), count)
            for i in T.serial(4 * per_byte):
                Y[tx, i] = out[i]

    return main


def test_a_decoder_with_another_source_is_refused():
    with pytest.raises(Unsupported, match="whose source is not TileLang's"):
        decoded("decode_i4u_to_f16", "// of somebody else", "float16", 2, 8)


SHARED = {"decode_i4u_to_f16": 0, "decode_i4s_to_f16": 8}


@pytest.mark.parametrize("name", SHARED)
def test_int4_decodes_to_pairs_half_a_word_apart(name, monkeypatch):
    monkeypatch.setattr("tlmatrix.interpreter.ops.templates._digest", lambda _: "731a0bb9301c78bd")
    packed = torch.randint(0, 256, (THREADS, 4), dtype=torch.uint8)
    word = (packed.long() << torch.tensor([0, 8, 16, 24])).sum(1)
    shifts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28])
    expected = ((word[:, None] >> shifts) & 15) - SHARED[name]
    found = decoded(name, f"// {name}", "float16", 2, 8)(packed)
    assert torch.equal(found, expected.half())


@pytest.mark.parametrize(("name", "bias"), [("decode_i2u_to_i8s", 0), ("decode_i2s_to_i8s", 2)])
def test_int2_decodes_to_bytes_of_registers(name, bias, monkeypatch):
    monkeypatch.setattr("tlmatrix.interpreter.ops.templates._digest", lambda _: "20656c3e20d9d30f")
    packed = torch.randint(0, 256, (THREADS, 4), dtype=torch.uint8)
    register, byte = torch.arange(16) // 4, torch.arange(16) % 4
    expected = ((packed[:, byte].int() >> (2 * register)) & 3) - bias
    found = decoded(name, f"// {name}", "int8", 4, 16)(packed)
    assert torch.equal(found.int(), expected)


def test_fp4_has_all_values_in_twiddled_order(monkeypatch):
    monkeypatch.setattr("tlmatrix.interpreter.ops.templates._digest", lambda _: "d3c7d129fb2b474b")
    name = "decode_fp4_to_bf16_twiddling"
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.randint(0, 16, (THREADS, 8))
    # Where the bits sign, exponent and mantissa of each element of a big-endian half lie.
    places = [(15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 11, 10, 13)]
    halves = torch.zeros((THREADS, 2), dtype=torch.int64)
    for k, place in enumerate(places):
        for half in range(2):
            for bit, at in zip((3, 2, 1, 0), place, strict=True):
                halves[:, half] |= ((codes[:, 4 * half + k] >> bit) & 1) << at
    parts = [halves[:, 0] >> 8, halves[:, 0] & 255, halves[:, 1] >> 8, halves[:, 1] & 255]
    packed = torch.stack(parts, 1).to(torch.uint8)
    expected = values[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
    assert torch.equal(decoded(name, "// fp4", "bfloat16", 2, 1)(packed).float(), expected)
