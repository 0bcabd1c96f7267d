"""The registry of dtypes agrees with PyTorch and with the codecs of the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tlmatrix.dtypes import DTYPES, TILE_DTYPES, dtype_named, dtype_of, size_in_bits, torch_dtype
from tlmatrix.interpreter.runtime.codecs import CODECS

FLOATS = [dtype for dtype in DTYPES.values() if dtype.floating]
# Of float8_e8m0fnu, whose conversion rounds up on a GPU, tests/interpreter/emit/test_float8.py.
LOW = [dtype for dtype in DTYPES.values() if dtype.codec not in (None, "e8m0")]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda d: d.name)
def test_size_and_kind_are_those_of_torch(dtype):
    found = torch_dtype(dtype.name)
    assert (found.itemsize, found.is_floating_point) == (dtype.bytes, dtype.floating)
    assert np.dtype(dtype.memory).itemsize == dtype.bytes
    assert dtype.poison is None or dtype.poison < 2**dtype.bits


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_precision_is_that_of_torch(dtype):
    integer = torch_dtype(f"int{dtype.bits}")
    after_one = (torch.ones(1, dtype=dtype.torch).view(integer) + 1).view(dtype.torch)
    assert dtype.roundoff == (after_one.double().item() - 1) / 2
    assert dtype.largest == torch.finfo(dtype.torch).max
    if dtype.poison is not None:
        bits = torch.tensor([dtype.poison]).view(torch.uint8)[: dtype.bytes]
        assert bits.view(dtype.torch).isnan().all()


@pytest.mark.parametrize("dtype", LOW, ids=lambda d: d.name)
def test_codecs_round_as_torch_does_and_saturate_where_cuda_does(dtype):
    codec = CODECS[dtype.codec]
    values = np.linspace(-300, 300, 1001, dtype=np.float32)
    expected = torch.from_numpy(values).to(dtype.torch).float().numpy()
    assert (codec.round(values) == expected).all()
    assert (codec.widen(codec.pack(values)) == expected).all()
    assert codec.pack(values).dtype == dtype.memory
    beyond = codec.round(np.array([3.4028e38], np.float32))[0]
    infinite = not dtype.saturates and dtype.largest < 3.4e38
    assert np.isinf(beyond) if infinite else beyond == dtype.largest


def test_names_of_tilelang_and_elements_that_no_tensor_holds():
    assert dtype_of("float8_e4m3") is dtype_named("float8_e4m3fn")
    assert dtype_of("handle") is None
    assert {"int4", "uint4", "float4_e2m1fn", "tfloat32"} <= TILE_DTYPES.keys() - DTYPES.keys()
    assert dtype_of("int4").interpreted
    assert not dtype_of("float8_e4m3fnuz").interpreted
    assert [size_in_bits(n) for n in ("int4", "float16x8", "bool", "handle")] == [4, 128, 8, 8]
