"""Random tile programs give the same under the interpreter and under TileLang's C backend.

`benchmarks/fidelity.py` compares hundreds; these few show that the comparison still runs.
"""

import shutil

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from tile_programs import NotCompiledError, TileProgram, differences, tile_program

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the C backend needs g++")


@settings(
    max_examples=6,
    derandomize=True,
    database=None,
    deadline=None,
    # A shrunk program is worth less than the minutes of compiling that it takes.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(choices=st.randoms(use_true_random=False))
def test_random_programs_agree(choices, tmp_path):
    program = tile_program(choices)
    try:
        found = differences(program, tmp_path)
    except NotCompiledError:
        assume(False)
    assert not found, "\n".join([*found, program.source])


def test_the_comparison_sees_a_difference(tmp_path):
    """A read of memory that nothing wrote is NaN interpreted, and zero or anything in C."""
    program = TileProgram(
        source=(
            "import tilelang.language as T\n"
            "@T.prim_func\n"
            "def main(A: T.Tensor((4, 4), 'float32'), B: T.Tensor((4, 4), 'float32'),\n"
            "         V: T.Tensor((4,), 'float32'), I: T.Tensor((4,), 'int32'),\n"
            "         Out: T.Tensor((4, 4), 'float32'), Row: T.Tensor((4,), 'float32'),\n"
            "         Num: T.Tensor((4, 4), 'int32')):\n"
            "    with T.Kernel(1, threads=32):\n"
            "        S = T.alloc_shared((4,), 'float32')\n"
            "        for i in T.Parallel(4):\n"
            "            if i > 0:\n"
            "                S[i] = 1.0\n"
            "        T.copy(S, Row)\n"
        ),
        shape=(4, 4),
        inner=4,
        exact=True,
        seed=0,
    )
    assert differences(program, tmp_path)[0].startswith("Row[0] is nan interpreted")
