"""Pictures of a launch: whose cell is whose, staircases, gaps, overlaps; never too large."""

from xml.etree import ElementTree as ET

import pytest
import tilelang.language as T
import torch
from traced_kernels import attention, parts

from tlmatrix.interpreter import interpret, interpreted

NAME = "{http://www.w3.org/2000/svg}"


def titles(picture):
    return [node.text for node in ET.fromstring(picture).iter(f"{NAME}title")]


def words(picture):
    return [node.text for node in ET.fromstring(picture).iter(f"{NAME}text")]


def causal(length, index):
    torch.manual_seed(0)
    with interpret(trace=True) as run:
        out = attention(length)(*(torch.randn(length, 16).half() for _ in range(3)))
        return run.picture(out, index)


def test_each_part_of_the_output_is_its_block_and_the_element_is_marked():
    told = titles(causal(56, (40, 3)))
    assert "block 2: rows 32 to 47, columns 0 to 15" in told
    assert "block 3: rows 48 to 55, columns 0 to 15" in told
    assert "Out[40, 3]" in told


def test_a_causal_mask_is_a_staircase():
    told = titles(causal(56, (40, 3)))
    cells = [text.removeprefix("block ") for text in told if ", iteration " in text]
    assert cells == [
        f"{block}, iteration {iteration}: {16 * iteration} to {min(16 * iteration + 15, 55)}"
        for block in range(4)
        for iteration in range(block + 1)
    ]


def test_turns_that_run_another_line_have_another_colour_with_its_place():
    torch.manual_seed(0)
    with interpret(trace=True) as run:
        out = attention(64, "scale")(*(torch.randn(64, 16).half() for _ in range(3)))
        picture = run.picture(out, (40, 3))
    (told,) = [text for text in words(picture) if text.startswith("an iteration that also runs")]
    assert "traced_kernels.py:" in told


def test_what_nobody_wrote_and_what_several_wrote_shows():
    def half(n):
        @T.prim_func
        def main(Y: T.Tensor((n,), "float32")):
            with T.Kernel(2, threads=32) as bx:
                for i in T.Parallel(8):
                    Y[bx * 16 + i] = 1.0

        return main

    y, z = torch.empty(32), torch.zeros(8)
    with interpret(trace=True) as run:
        interpreted(half(32))(y)
        gaps = run.picture(y, (2,))
        interpreted(parts(8, 3))(torch.ones(3, 8), z)
        sums = run.picture(z, (2,))
    assert "not written: rows 0 to 0, columns 8 to 15" in titles(gaps)
    assert {"not written", "no block ran a loop"} <= set(words(gaps))
    assert "by several blocks" in words(sums)
    assert "by several blocks" not in words(gaps)


@pytest.mark.parametrize("blocks", [1, 2000])
def test_any_number_of_blocks_fits_a_page(blocks):
    def many(n):
        @T.prim_func
        def main(X: T.Tensor((n, 4), "float32"), Y: T.Tensor((n, 4), "float32")):
            with T.Kernel(n, threads=32) as bx:
                for step in T.serial(bx % 3 + 1):
                    for i in T.Parallel(4):
                        Y[bx, i] = X[bx, i] + step

        return main

    y = torch.empty(blocks, 4)
    with interpret(trace=True) as run:
        interpreted(many(blocks))(torch.ones(blocks, 4), y)
        picture = run.picture(y, (blocks - 1, 1))
    root = ET.fromstring(picture)
    assert float(root.get("height")) < 2200
    assert len(picture) < 400_000
    assert any(f" of {blocks} blocks" in text for text in words(picture)) == (blocks > 64)
    assert any(str(blocks - 1) in text for text in words(picture))
