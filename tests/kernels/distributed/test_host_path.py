"""What a call costs the host: equal calls are checked once, and what they need is kept."""

import pytest
import torch

from tlmatrix import simulate
from tlmatrix.interpreter.frontend.device import stand_in
from tlmatrix_kernels import target
from tlmatrix_kernels.distributed import all_gather_gemm, create_context, gemm_reduce_scatter
from tlmatrix_kernels.distributed import context as contexts
from tlmatrix_kernels.distributed.memory import SymmetricBuffer

MODULES = ("all_gather_gemm", "gemm_reduce_scatter")


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float16)


def call_both(context, m=8, n=16, k=8, bias=None):
    all_gather_gemm(zeros(m, k), zeros(k, n), context=context, overlap=True)
    gemm_reduce_scatter(zeros(m, k), zeros(k, n), bias, context=context, overlap=True)


def test_equal_calls_are_checked_and_their_kernels_chosen_once(monkeypatch):
    import importlib

    checked, chosen, looked_up = [], [], []
    for name in MODULES:
        module = importlib.import_module(f"tlmatrix_kernels.distributed.{name}")
        for function, notes in (("check_operands", checked), ("gemm_launch", chosen)):
            original = getattr(module, function)

            def noting(*args, original=original, notes=notes, **kwargs):
                notes.append(1)
                return original(*args, **kwargs)

            monkeypatch.setattr(module, function, noting)
    on = SymmetricBuffer.on

    def looking(self, *args, **kwargs):
        looked_up.append(1)
        return on(self, *args, **kwargs)

    monkeypatch.setattr(SymmetricBuffer, "on", looking)

    def program(_):
        context = create_context()
        counts = []
        for _call in range(5):
            call_both(context)
            counts.append((len(checked), len(chosen), len(looked_up)))
        return counts

    # With one rank at a time: the counts are of both ranks.
    counts = simulate(program, world=2, seed=1).results
    assert len(checked) == len(chosen) == 2 * 2
    last = [each[-1][2] for each in counts]
    assert len(looked_up) == max(last), "views of both halves are kept after two calls"
    assert len(looked_up) <= 2 * 2 * 2 * 6


def test_changed_call_is_validated_again():
    def program(_):
        context = create_context()
        call_both(context)
        bad = [
            ("a and b must agree in k", lambda: call_both(context, k=8, n=16) or wrong(context)),
            (r"bias must have shape \(16,\)", lambda: call_both(context, bias=zeros(15))),
            ("b must have the dtype of a", lambda: mixed(context)),
        ]
        for words, call in bad:
            with pytest.raises(ValueError, match=words):
                call()

    def wrong(context):
        all_gather_gemm(zeros(8, 8), zeros(9, 16), context=context, overlap=True)

    def mixed(context):
        all_gather_gemm(zeros(8, 8), zeros(8, 16).bfloat16(), context=context, overlap=True)

    simulate(program, world=2)


def test_cached_calls_are_dropped_when_a_buffer_grows():
    def program(rank):
        context = create_context()
        right = []
        for m in (4, 4, 4, 2100, 4, 4, 2100):
            source = torch.Generator().manual_seed(m)
            a = torch.randint(-1, 2, (2, m, 16), generator=source).half()
            b = torch.randint(-1, 2, (16, 8), generator=source).half()
            c = all_gather_gemm(a[rank], b, context=context, overlap=True)
            right.append(torch.equal(c.float(), a.flatten(0, 1).float() @ b.float()))
        held = {half.buffer for call in context._prepared.values() for half in call.halves.values()}
        return right, held <= set(context._buffers.values())

    found = simulate(program, world=2, seed=3)
    assert found.results == [([True] * 7, True)] * 2
    assert not found.reports


def test_call_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(contexts, "MAX_CACHED_CALLS", 3)
    context = create_context(device="cpu")
    made = []
    for key in (1, 2, 3, 4, 4, 1):
        context.cached((key,), lambda key=key: made.append(key) or key)
    assert made == [1, 2, 3, 4, 1]
    assert len(context._prepared) == 3


def test_the_capability_is_that_of_the_current_gpu():
    """Two simulated GPUs in one process: their index alone would not tell them apart."""
    for arch, number in (("sm_80", 80), ("sm_90a", 90), ("sm_100a", 100)):
        with stand_in(arch=arch, sms=4):
            assert target.capability() == number
