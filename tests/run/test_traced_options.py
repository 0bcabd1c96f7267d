"""Kernels of combinations that no case runs are traced, and what they need is checked."""

import random
import textwrap
from functools import partial

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.matrix import Case
from tlmatrix.run import traced_options
from tlmatrix.run.harness import Harness
from tlmatrix.spec import load_spec

KERNEL = """
import tilelang
import tilelang.language as T


@tilelang.jit
def copied(width, stages):
    rows = T.dynamic("rows")

    @T.prim_func
    def copied(X: T.Tensor((rows, width), "float32"), Y: T.Tensor((rows, width), "float32")):
        with T.Kernel(T.ceildiv(rows, 64), threads=128) as block:
            tile = T.alloc_shared([64 * stages, width], "float32")
            T.copy(X[block * 64, 0], tile)
            T.copy(tile, Y[block * 64, 0])

    return copied


def copy(x, stages):
    y = x.new_empty(x.shape)
    copied(x.shape[1], stages)(x, y)
    return y
"""
SPEC = """
    name: wide_copy
    problem:
      inputs: {x: {shape: [rows, width], dtype: float32}}
      outputs: [y]
      reference: torch:clone
    entry: MODULE:copy
    call: {x: x, stages: stages}
    axes: {rows: [64], width: [32, 256], stages: [1, STAGES]}
    compile_axes: [width, stages]
"""


@pytest.mark.parametrize(("stages", "found"), [(2, False), (8, True)])
def test_memory_of_a_combination_that_did_not_run(stages, found, tmp_path):
    (tmp_path / f"wide_copy_{stages}.py").write_text(KERNEL)
    text = SPEC.replace("MODULE", f"wide_copy_{stages}").replace("STAGES", str(stages))
    path = tmp_path / "wide_copy.yaml"
    path.write_text(textwrap.dedent(text))
    spec = load_spec(path)
    harness = Harness(backend_named("interpreter"))
    case = Case(spec.name, {"rows": 64, "width": 32, "stages": 1})
    wide = {"rows": 64, "width": 256, "stages": stages}
    for largest in (False, True):
        others = {
            tuple(sorted(traced_options._other(*of, random.Random(seed), largest=largest).items()))
            for of in [(harness, spec, case)]
            for seed in range(40)
        }
        assert tuple(sorted(wide.items())) in others
        assert (len(others) == 1) == largest
    needs = partial(traced_options._needs, wide)
    # The second is answered by the same process, as if code under test had kept its kernels.
    for _ in range(2):
        titles = [each.title for each in traced_options._in_child(harness, spec, "sm_90a", needs)]
        assert bool(titles) == found
    harness.close()
    for title in titles:
        assert title.startswith("budget: with width=256, stages=8: the kernel needs about 524288")
