"""`tlmatrix explain` of cases on several ranks."""

import re
from pathlib import Path

import pytest

from tlmatrix.cli import main

SPECS = Path(__file__).parents[2] / "specs"
GATHER = '{"world": 2, "dtype": "float16", "overlap": true, "m": 70, "n": 64, "k": 40}'
SCATTER = '{"world": 2, "dtype": "float16", "overlap": true, "m": 70, "n": 64, "k": 40}'


@pytest.fixture
def explain(capsys):
    def run(spec, values, *options, code=0):
        assert main(["explain", f"{SPECS / spec}.yaml", "--values", values, *options]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return run


def test_the_kernel_of_the_rank_with_the_element_is_explained(explain):
    text = explain("all_gather_gemm", GATHER, "--index", "10,40")
    assert "\nc[10, 40]: m 10, m tile 0, rank 1, n 40" in text
    assert "  of        rank 1 of 2, as c[10, 8] of [70, 32]\n" in text
    assert re.search(r"\nC\[10, 8\] of kernel gemm_arrival, launch \d on rank 1 \(float16\)", text)
    # Its rows of A came from the other rank while it ran, so a run before they came would differ.
    expected, got = re.search(r"expected (\S+), got (\S+)", text).groups()
    exact = re.search(r"in a float64 run of the same program (\S+)", text)[1]
    assert float(exact) == pytest.approx(float(expected), rel=1e-4)
    assert float(got) == pytest.approx(float(expected), rel=1e-2)


def test_reads_of_a_shard_have_indices_of_the_whole_tensor(explain):
    text = explain("all_gather_gemm", GATHER, "--index", "10,40")
    table = text.rpartition("change of the element")[2]
    (read,) = (line for line in table.splitlines() if line.strip().startswith("b[0:40, 40] "))
    assert "step 0" in read
    assert "a[0:70, 0:40]  " in table
    assert "not read by this kernel, except by copies" in table
    assert "<-" not in table


def test_the_kernel_that_computed_an_input_is_named(explain):
    text = explain("gemm_reduce_scatter", SCATTER, "--index", "50,40", "--no-inputs")
    assert "rank 1 of 2, as c[15, 40] of [35, 64]" in text
    assert re.search(r"out\[15, 40\] of kernel ring_reduction, launch \d on rank 1", text)
    assert re.search(r"own\[15, 40\], written by launch \d on rank 1, gemm_signals", text)
    assert "not precision" not in text, "the product was rounded by the kernel before"


def test_copied_inputs_may_have_been_rounded_by_an_earlier_kernel(explain):
    text = explain(
        "gemm_reduce_scatter",
        '{"world": 2, "dtype": "bfloat16", "overlap": false, "m": 1, "n": 1, "k": 6, '
        '"out_dtype": "same", "transpose_b": false, "values": "normal"}',
        "--index=0,0",
        "--no-inputs",
    )
    assert "\n  made of   parts[0, 0, 0]\n" in text, "a product that was copied from the other rank"
    assert "as far from it" in text
    assert text.endswith(": the kernel's inputs may have been rounded before\n")


def test_a_parameter_is_explained_on_the_selected_rank(explain):
    of = [
        explain("all_gather_gemm", GATHER, "--buffer", "C", "--index", "3,5", "--rank", rank)
        for rank in ("0", "1")
    ]
    values = [re.search(r"  value +(\S+),", text)[1] for text in of]
    assert values[0] != values[1]
    assert [re.search(r"on rank (\d)", text)[1] for text in of] == ["0", "1"]


@pytest.mark.parametrize(
    ("spec", "values", "options", "words"),
    [
        ("all_gather_gemm", GATHER, ["--rank", "0"], "c[10, 40] is an element of rank 1"),
        ("all_gather_gemm", GATHER, ["--rank", "2"], "no such rank; the case has ranks 0 to 1"),
        ("rms_norm", '{"rows": 16, "cols": 64}', ["--rank", "1"], "rms_norm has no axis world"),
    ],
)
def test_a_rank_without_the_element_is_an_error_with_its_rank(
    explain, spec, values, options, words
):
    assert words in explain(spec, values, "--index", "10,40", *options, code=2)
