"""Three example specs: packed attention, a declared problem and a factory."""

VARLEN = """\
# yaml-language-server: $schema=../tlmatrix/spec/schema.json
name: gqa_varlen
summary: Grouped-query flash attention over packed sequences, forward and backward.
problem: attention                    # inputs, float64 reference, relations, FLOP count
entry: tlmatrix_kernels.attention:varlen_attention

axes:
  dtype:     [float16, bfloat16]
  kv_heads:  [1, 2]
  groups:    [1, 3, 4, 8]             # query heads per kv head
  head_dim:  [64, 96, 128]
  head_dim_v: [same, 128]
  causal:    [false, true]
  window:    [none, 1, 63, 64, 200]
  backward:  [atomic, split]          # an axis the entry takes as a keyword
  seqlens:
    - {q: [17, 64, 1], k: same}
    - {q: [128, 129, 127], k: [256, 1, 64]}
    - {q: [0, 5], k: [7, 0]}

constraints:
  - {require: window is none or causal, because: a window is causal by definition}

tiers:
  quick:   {strategy: pairwise}
  nightly: {strategy: 3-wise}
  full:    {strategy: product}

tolerance:
  default: {mode: reference_relative, factor: 2, floor: auto}
  dq:      {factor: 3}
  by_arch: {sm_100: {factor: 4}}

checks: [numeric, gradients, poison, guards, isolation, determinism, relations]

fuzz:
  seqlens: {sequences: 1..8, length: 0..300, around: [64, 128], k: independent}
  examples: {quick: 20, nightly: 500}

invalid_inputs:
  groups must be: {groups: 0}

known_bugs:
  - {when: head_dim == 256 and arch == 'sm_80', issue: "#12", expires: 2027-03-01, mode: tolerate}

bench:
  cases: [{seqlens: {q: [4096, 4096], k: same}, head_dim: 128, causal: true}]
  baselines: [sdpa_cudnn, sdpa_flash]
"""

NORM = """\
name: rms_norm
problem:
  inputs:
    x: {shape: [rows, cols], dtype: $dtype, grad: true}
    w: {shape: [cols], dtype: $dtype, grad: true}
  outputs: [y]
  reference: mypkg.reference:rms_norm
factory: mypkg.kernels:rms_norm_kernel        # @tilelang.jit, or returns a PrimFunc
factory_args: {M: rows, N: cols, blk_m: 64}
call: [x, w]
axes: {dtype: [float16], rows: [1, 65], cols: [64]}
"""

FACTORY = """\
name: someone_elses_gqa_forward
problem: attention
factory: example_gqa_fwd_bshd:flashattn
factory_args: {batch: batch, heads: heads, seq_len: seqlen_q, dim: head_dim,
          is_causal: causal, groups: groups, block_M: 64, block_N: 64}
call: [q, k, v]
returns: [out]
axes: {layout: [bshd], dtype: [float16], seqlen_q: [1, 64, 200]}
"""
