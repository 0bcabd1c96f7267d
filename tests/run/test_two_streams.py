"""Two calls on two simulated streams: memory that both share, and streams that do not wait."""

import sys

import pytest

from spec_results import results_of
from tlmatrix import interpreter
from tlmatrix.run import Status

SPEC = """
name: scaled
problem:
  inputs:
    x: {{shape: [rows], dtype: float32}}
  outputs: [y]
  reference: two_streams_code:reference
entry: two_streams_code:{entry}
returns: [y]
axes: {{rows: [100]}}
checks: [numeric, relations]
"""
CODE = """
import tilelang
import tilelang.language as T
import torch


def reference(x):
    return x * 4


@tilelang.jit
def double(threads=128):
    M = T.dynamic("M")

    @T.prim_func
    def doubled(X: T.Tensor((M,), "float32"), Y: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, 64), threads=threads) as bx:
            for i in T.Parallel(64):
                if bx * 64 + i < M:
                    Y[bx * 64 + i] = X[bx * 64 + i] * 2

    return doubled


kept = {}


def twice(x, middle, result):
    double()(x, middle)
    double()(middle, result)
    return result


def own_memory(x):
    return twice(x, torch.empty_like(x), torch.empty_like(x))


def kept_workspace(x):
    middle = kept.setdefault(x.shape, torch.empty_like(x))
    return twice(x, middle, torch.empty_like(x))


def ordered_workspace(x):
    stream = torch.cuda.current_stream()
    if "last" in kept:
        stream.wait_event(kept["last"])
    result = kept_workspace(x)
    kept["last"] = stream.record_event()
    return result


def side_stream(x, before=True, after=True):
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    middle, result = torch.empty_like(x), torch.empty_like(x)
    if before:
        side.wait_stream(current)
    with torch.cuda.stream(side):
        twice(x, middle, result)
    if after:
        current.wait_stream(side)
    return result


def kept_streams(x, before=True, after=True):
    side = kept.setdefault("side", torch.cuda.Stream())
    done = kept.setdefault("done", torch.cuda.Event())
    result = torch.empty_like(x)
    if before:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        twice(x, kept.setdefault("middle", torch.empty_like(x)), result)
        done.record()
    if after:
        done.wait()
    return result


def kept_streams_that_do_not_wait(x):
    return kept_streams(x, before=False)


def kept_events_that_are_not_waited_for(x):
    return kept_streams(x, after=False)


def waits_for_nothing(x):
    return side_stream(x, before=False)


def is_not_waited_for(x):
    return side_stream(x, after=False)
"""


@pytest.fixture
def run(code_folder, monkeypatch):
    """Run the case of an entry."""
    monkeypatch.delitem(sys.modules, "two_streams_code", raising=False)

    failed = []
    simulate = interpreter.simulate

    def noted(*given, **options):
        try:
            return simulate(*given, **options)
        except Exception as error:
            failed.append(error)
            raise

    monkeypatch.setattr(interpreter, "simulate", noted)

    def run(entry):
        (result,) = results_of(SPEC.format(entry=entry), code_folder / "scaled.yaml")
        assert failed == []
        return result

    return run


@pytest.mark.parametrize(
    "entry", ["own_memory", "side_stream", "ordered_workspace", "kept_streams"]
)
def test_no_finding_for_ordered_streams(run, entry):
    result = run(entry)
    assert result.status is Status.PASSED, result.findings


@pytest.mark.parametrize(
    "entry",
    [
        "kept_workspace",
        "waits_for_nothing",
        "is_not_waited_for",
        "kept_streams_that_do_not_wait",
        "kept_events_that_are_not_waited_for",
    ],
)
def test_a_race_of_two_streams_is_a_finding(run, entry):
    findings = run(entry).findings
    assert findings
    for finding in findings:
        assert finding.check == "relations"
        assert finding.title.startswith("two_streams: ")
        assert "nothing orders the two" in (finding.detail or "") + finding.title
