"""Small specs to search, and strategies for them."""

import textwrap

from hypothesis import strategies as st

from tlmatrix.matrix import Case
from tlmatrix.spec.loader import load_spec

_ROWS = """\
name: rows
problem:
  inputs:
    x: {{shape: [rows, cols], dtype: $dtype, grad: false}}
  outputs: [y]
  reference: fuzzed_entries:reference
entry: fuzzed_entries:{entry}
axes:
  dtype: [float32, float16]
  rows: [1, 5]
  cols: [3, 8]
  {turned}
checks: [numeric]
fuzz:
  examples: {{quick: 20}}
"""

_WINDOWS = """\
name: windows
problem:
  inputs:
    x: {shape: [batch, seqlen_k], dtype: float32, grad: false}
  outputs: [y]
  reference: fuzzed_entries:window_reference
entry: fuzzed_entries:window_sums
axes:
  batch: [1]
  window: [1, 300]
  seqlen_k: [1, 300]
tile: {k: 256}
checks: [numeric]
fuzz:
  axes: {batch: 1..3, window: 1..1000, seqlen_k: 1..1000}
"""

_SCALED = """\
name: scaled
problem:
  inputs:
    x: {shape: [n], dtype: float32, grad: false}
  outputs: [y]
  reference: fuzzed_entries:reference
entry: fuzzed_kernels:wrong_at_one_length
axes: {n: [5]}
checks: [numeric]
fuzz:
  axes: {n: 1..30000}
"""

_PACKED = """\
name: packed
problem: attention
entry: fuzzed_kernels:{entry}
returns: [out]
axes:
  dtype: [float16]
  kv_heads: [1, 2]
  head_dim: [32, 64]
  causal: [false]
  seqlens: [{{q: [17, 64, 1], k: same}}]
tile: {{q: 32, k: 32}}
checks: [{checks}]
fuzz:
  seqlens: {{sequences: 1..8, length: 0..300, around: [32], k: independent}}
  examples: {{quick: 20}}
"""


def rows_spec(folder, entry, more=""):
    turned = "turned: [false, true]" if entry == "two_faults" else ""
    path = folder / "rows.yaml"
    path.write_text(_ROWS.format(entry=entry, turned=turned) + textwrap.dedent(more))
    return load_spec(path)


def rows_cases(spec):
    """Rows up to 300, every other axis as the spec lists it."""
    axes = {axis: st.sampled_from(values) for axis, values in spec.axes.items()}
    axes["rows"] = st.integers(1, 300)
    return st.fixed_dictionaries(axes).map(lambda values: Case(spec.name, values, "fuzz"))


def windows_spec(folder):
    path = folder / "windows.yaml"
    path.write_text(_WINDOWS)
    return load_spec(path)


def scaled_spec(folder):
    path = folder / "scaled.yaml"
    path.write_text(_SCALED)
    return load_spec(path)


def packed_spec(folder, entry, checks="numeric, poison, guards, sanitizers"):
    path = folder / "packed.yaml"
    path.write_text(_PACKED.format(entry=entry, checks=checks))
    return load_spec(path)


@st.composite
def _packed_case(draw, spec):
    length = st.sampled_from([0, 1, 31, 32, 33, 64, 65]) | st.integers(0, 300)
    count = draw(st.integers(1, 8))
    values = {axis: draw(st.sampled_from(values)) for axis, values in spec.axes.items()}
    values["seqlens"] = {side: [draw(length) for _ in range(count)] for side in ("q", "k")}
    return Case(spec.name, values, "fuzz")


def packed_cases(spec):
    """Batches of up to 8 sequences of up to 300 rows, edges of tiles often."""
    return _packed_case(spec)
