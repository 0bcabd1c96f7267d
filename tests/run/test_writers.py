"""Findings about values name the block and line that wrote the worst element."""

from pathlib import Path

import tilelang
import tilelang.language as T

from tlmatrix.matrix import Case
from tlmatrix.run.runner import Runner
from tlmatrix.spec import parse_spec

SPEC = """
name: doubled
problem:
  inputs: {x: {shape: [rows, 8], dtype: float32}}
  outputs: [y]
  reference: torch:add
factory: test_writers:doubled
call: [x]
axes: {rows: [4, 12]}
"""


@tilelang.jit(out_idx=[-1])
def doubled(wrong=9):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, 8), "float32"), Y: T.Tensor((rows, 8), "float32")):
        with T.Kernel(T.ceildiv(rows, 4), threads=32) as tile:
            for i, j in T.Parallel(4, 8):
                if tile * 4 + i < rows:
                    Y[tile * 4 + i, j] = X[tile * 4 + i, j] * (2 + (tile * 4 + i == wrong))

    return main


def reference(x):
    return 2 * x


def test_the_block_and_line_of_the_worst_element(tmp_path):
    text = SPEC.replace("torch:add", "test_writers:reference")
    spec = parse_spec(text, tmp_path / "doubled.yaml")
    case = Case("doubled", {"rows": 12, "values": "normal"})
    with Runner("interpreter") as runner:
        (finding,) = runner.run(spec, case).findings
        (judged,) = runner.judge(spec, case).findings
    source = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(source, 1) if text.strip().startswith("Y[tile"))
    assert f"the worst element is written by main, block (bx 2), at test_writers.py:{line}" in (
        finding.detail
    )
    assert "written by" not in (judged.detail or "")


def test_a_case_that_passes_has_none(tmp_path):
    text = SPEC.replace("torch:add", "test_writers:reference")
    spec = parse_spec(text, tmp_path / "doubled.yaml")
    with Runner("interpreter") as runner:
        assert not runner.run(spec, Case("doubled", {"rows": 4, "values": "normal"})).findings
