"""Baselines of PyTorch match the reference of the problem, or report that they do not apply."""

import textwrap

import pytest
import torch

from tlmatrix.bench.baselines import torch_run
from tlmatrix.bench.candidates import NotApplicableError, find_mismatch, prepare_candidate
from tlmatrix.problem import family_for
from tlmatrix.spec import parse_spec

_ATTENTION = """
name: attention
problem: attention
entry: tlmatrix_kernels.attention:varlen_attention
axes:
  dtype: [float16]
  kv_heads: [2]
  groups: [3]
  head_dim: [16]
"""


def _problem(text, **values):
    spec = parse_spec(textwrap.dedent(text))
    first = {name: each[0] for name, each in spec.axes.items()}
    problem = family_for(spec).problem(
        spec, {**first, **values}, seed=5, device=torch.device("cpu")
    )
    return spec, problem


def _is_right(name, spec, problem):
    """The tensors that came out, all of them right."""
    found = prepare_candidate(torch_run(name, spec, problem), problem)
    assert find_mismatch(problem, problem.lowp(), found.results) is None
    return set(found.results)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_sdpa_knows_layouts_groups_masks_and_scales(layout, causal, scale):
    spec, problem = _problem(
        _ATTENTION, batch=2, seqlen_q=40, layout=layout, causal=causal, scale=scale
    )
    assert _is_right("sdpa_flash", spec, problem) == {"out", "dq", "dk", "dv"}


def test_sdpa_takes_packed_sequences_of_one_length():
    spec, problem = _problem(_ATTENTION, seqlens={"q": [40, 40], "k": [24, 24]})
    assert "dq" in _is_right("sdpa_flash", spec, problem)


def test_one_causal_query_at_the_end_sees_every_key():
    spec, problem = _problem(_ATTENTION, batch=2, seqlen_q=1, seqlen_k=50, causal=True)
    _is_right("sdpa_flash", spec, problem)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"seqlens": {"q": [40, 8], "k": "same"}}, "sequences of equal length"),
        ({"seqlen_q": 40, "causal": True, "window": 9}, "no window"),
        ({"seqlen_q": 40, "seqlen_k": 50, "causal": True}, "aligns a causal mask"),
        ({"seqlen_q": 40, "sink": True}, "no sinks"),
    ],
)
def test_sdpa_reports_unsupported_cases(values, reason):
    spec, problem = _problem(_ATTENTION, **values)
    with pytest.raises(NotApplicableError, match=reason):
        torch_run("sdpa_cudnn", spec, problem)


def test_a_missing_kernel_of_sdpa_is_not_applicable():
    if torch.cuda.is_available():
        pytest.skip("cuDNN is there")
    spec, problem = _problem(_ATTENTION, seqlen_q=40)
    with pytest.raises(NotApplicableError, match="does not support the case"):
        prepare_candidate(torch_run("sdpa_cudnn", spec, problem), problem)


@pytest.mark.parametrize(
    "values",
    [
        {"batch": 2, "seqlen_q": 40, "seqlen_k": 56, "causal": True, "window": 9},
        {"seqlens": {"q": [40, 8], "k": [24, 30]}, "causal": True},
    ],
)
def test_the_reference_knows_every_mask(values, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)
    spec, problem = _problem(_ATTENTION, **values)
    assert "dv" in _is_right("reference_compiled", spec, problem)


def test_varlen_attention_is_asked_for_our_window(monkeypatch):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    asked = {}

    def varlen_attn(query, key, value, *_starts, window_size=None, **options):
        asked.update(options, window_size=window_size)
        return query * key.sum() * value.sum()

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    spec, problem = _problem(_ATTENTION, seqlens=[40, 8], causal=True, window=9)
    prepare_candidate(torch_run("torch_varlen", spec, problem), problem)
    assert asked["window_size"] == (8, 0)


def test_sdpa_reads_a_cache_of_equal_lengths():
    spec, problem = _problem(
        _ATTENTION, layout="cache", seqlens={"q": 1, "k": [40, 40]}, max_seqlen_k=64
    )
    assert _is_right("sdpa_flash", spec, problem) == {"out"}
    spec, problem = _problem(_ATTENTION, layout="cache", seqlens={"q": 1, "k": [40, 50]})
    with pytest.raises(NotApplicableError, match="sequences of equal length"):
        torch_run("sdpa_flash", spec, problem)


_GEMM = """
name: gemm
problem: gemm
entry: tlmatrix_kernels.gemm:gemm
axes:
  m: [33]
  n: [24]
  k: [48]
"""


@pytest.mark.parametrize(
    "values",
    [
        {"dtype": "float16", "transpose_a": True},
        {"dtype": "bfloat16", "accumulate": True, "transpose_b": True},
        {"a_dtype": "bfloat16", "b_dtype": "int8", "out_dtype": "bfloat16", "scaled": True},
        {"a_dtype": "int8", "b_dtype": "int8", "out_dtype": "int32"},
    ],
)
def test_gemm_baseline_is_torch_matmul(values):
    spec, problem = _problem(_GEMM, **values)
    assert _is_right("torch", spec, problem) == {"c"}
    with pytest.raises(NotApplicableError, match="implements attention only"):
        torch_run("sdpa_flash", spec, problem)


def test_float8_products_ask_for_the_operands_that_torch_takes():
    float8 = {"a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn", "out_dtype": "bfloat16"}
    spec, problem = _problem(_GEMM, **float8)
    with pytest.raises(NotApplicableError, match="columns of b"):
        torch_run("torch", spec, problem)
