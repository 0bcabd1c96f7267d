"""The flags' CUDA source: every order and scope is there, as one instruction of PTX."""

import itertools
import re

import pytest

from tlmatrix_kernels.distributed import signals

SCOPES = ("gpu", "sys")


def body(name, threads=128):
    found = re.search(rf" {name}\([^)]*\) {{(.*?)\n}}\n", signals.source(threads), re.DOTALL)
    assert found, name
    return found[1]


@pytest.mark.parametrize("scope", SCOPES)
def test_every_access_has_the_order_and_scope_of_its_name(scope):
    for order in ("relaxed", "acquire"):
        assert f"ld.{order}.{scope}.global.s32" in body(f"tlm_load_{order}_{scope}")
        for compare in ("ge", "eq"):
            wait = body(f"tlm_wait_{compare}_{order}_{scope}")
            assert wait.count(f"tlm_load_{order}_{scope}(flag)") == 2
            assert "tlm_fence_proxy_async();" in wait
    for order in ("relaxed", "release"):
        assert f"st.{order}.{scope}.global.s32" in body(f"tlm_store_{order}_{scope}")
        assert f"tlm_store_{order}_{scope}(" in body(f"tlm_block_store_{order}_{scope}")
    for order in ("relaxed", "acquire", "release", "acq_rel"):
        assert f"atom.add.{order}.{scope}.global.s32" in body(f"tlm_fetch_add_{order}_{scope}")
        assert f"tlm_fetch_add_{order}_{scope}(" in body(f"tlm_block_fetch_add_{order}_{scope}")


def test_block_synchronizes_before_its_flag_is_raised():
    for kind, scope in itertools.product(("store", "fetch_add"), SCOPES):
        lines = body(f"tlm_block_{kind}_release_{scope}").strip().splitlines()
        assert lines[0].strip() == "tlm_block_meet();"
        assert "threadIdx.x == blockDim.x - 1" in lines[1]
    assert 'asm volatile("bar.sync 15, 256;"' in body("tlm_block_meet", threads=256)


@pytest.mark.parametrize("threads", [0, 31, 48, 1056])
def test_partial_warps_are_refused(threads):
    with pytest.raises(ValueError, match=f"threads must be a multiple of 32, .* got {threads}"):
        signals.source(threads)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: signals.load(None, 0, order="release"), "order must be one of relaxed, acquire"),
        (lambda: signals.wait(None, 0, 1, order="acq_rel"), "order must be one of relaxed, acq"),
        (lambda: signals.wait(None, 0, 1, compare="gt"), "compare must be one of ge, eq, got 'gt'"),
        (lambda: signals.post(None, 0, 1, order="acquire"), "order must be one of relaxed, rel"),
        (lambda: signals.st(None, 0, 1, order="seq_cst"), "order must be one of relaxed, release"),
        (lambda: signals.add(None, 0, 1, scope="cta"), "scope must be one of gpu, sys, got 'cta'"),
        (lambda: signals.atom_add(None, 0, 1, scope=None), "scope must be one of gpu, sys, got N"),
        (lambda: signals.given(None, 0, 1, 2, True, scope="device"), "scope must be one of gpu"),
    ],
)  # fmt: skip
def test_invalid_orders_and_scopes_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
