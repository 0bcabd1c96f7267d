"""`tlmatrix record`: the calls of a program, and what they were compared with."""

import json

import pytest
import torch

from outside_project import project
from tlmatrix.draft.calls import alike, calls_of_definition, definition, read_calls
from tlmatrix.draft.comparisons import Comparisons, Returned
from tlmatrix.draft.slices import Slicer
from tlmatrix.draft.targets import is_test_file
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.spec import load_spec

__all__ = ["project"]

KERNEL = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[1])
def row_sum_kernel(cols, dtype="float32", block=32):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, cols), dtype), Y: T.Tensor((rows,), dtype)):
        with T.Kernel(rows, threads=32) as row:
            x = T.alloc_fragment([1, block], "float32")
            total = T.alloc_fragment([1], "float32")
            T.clear(total)
            for tile in T.serial(cols // block):
                T.copy(X[row, tile * block], x)
                T.reduce_sum(x, total, dim=1, clear=False)
            Y[row] = total[0]

    return main

def row_sum(x, scale=1.0):
    return row_sum_kernel(x.shape[1])(x) * scale
"""
TEST = """
import pytest
import torch
from rows import row_sum

def expected(values):
    return values.sum(-1)

@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("cols", [32, 64, 96])
def test_row_sum(rows, cols):
    x = torch.randn(rows, cols, device="cuda")
    torch.testing.assert_close(row_sum(x), expected(x), rtol=1e-4, atol=1e-4)
"""


@pytest.fixture
def repository(project):
    (project.folder / "rows.py").write_text(KERNEL)
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "test_rows.py").write_text(TEST)
    return project


def finished(project, *words):
    """The output of a command that succeeds, in a process of its own."""
    with project.start("tlmatrix", *words) as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.OK, out
    return out


def test_calls_of_operators_and_factories_are_recorded_with_what_judged_them(repository):
    words = ["record", "-o", "calls.jsonl", "-m", "pytest", "tests", "-q"]
    with repository.start("tlmatrix", *words) as process:
        out, _ = process.communicate(timeout=120)
    assert "rows:row_sum: 6 different calls, 6 compared with another result" in out
    calls = read_calls(repository.folder / "calls.jsonl")
    assert set(calls) == {"rows:row_sum", "rows:row_sum_kernel"}
    of_operator = calls["rows:row_sum"]
    assert {call.tensors["x"].shape for call in of_operator} == {
        (rows, cols) for rows in (1, 7) for cols in (32, 64, 96)
    }
    (compared,) = of_operator[0].compared
    assert compared.function == "tests.test_rows:expected"
    assert compared.arguments == {"values": "$x"}
    assert all(call.inner for call in calls["rows:row_sum_kernel"])
    assert [call.construct["cols"] for call in calls["rows:row_sum_kernel"][:1]] == [32]


def test_what_is_converted_is_compared_all_the_same(repository):
    """Results are cast, moved and copied before they are compared, and arguments of references."""
    text = """
import torch
from rows import row_sum_kernel

def expected(values):
    return values.double().sum(-1)

def main():
    x = torch.randn(5, 64).half()
    y = row_sum_kernel(64, "float16")(x)
    torch.testing.assert_close(actual=y.float().cpu(), expected=expected(x.float()).float())

main()
"""
    (repository.folder / "script.py").write_text(text)
    finished(repository, "record", "--trace-only", "script.py")
    (call,) = read_calls(repository.folder / "calls.jsonl")["rows:row_sum_kernel"]
    (compared,) = call.compared
    assert (compared.function, compared.arguments) == ("script:expected", {"values": "$X"})
    assert not call.inner  # `main` takes no tensors, so that it is no operator around the kernel


def test_a_result_has_the_dimensions_that_the_code_names(repository):
    """Here 2 of 32 columns, which are no sixteenth part of them."""
    kernel = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[1])
def first_kernel(E, K):
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n, E), "float32"), Y: T.Tensor((n, K), "float32")):
        with T.Kernel(n, threads=32) as row:
            for j in T.Parallel(K):
                Y[row, j] = X[row, j]

    return main
"""
    (repository.folder / "first.py").write_text(kernel)
    text = "import torch\nfrom first import first_kernel\nfirst_kernel(32, 2)(torch.randn(7, 32))\n"
    (repository.folder / "script.py").write_text(text)
    finished(repository, "record", "--trace-only", "script.py")
    words = ("first:first_kernel", "--calls", "calls.jsonl", "-o", "first.yaml", "--no-run")
    assert repository.tlmatrix("new", *words).code == ExitCode.OK
    spec = load_spec(repository.folder / "first.yaml")
    assert "Y: {shape: [n, K]," in (repository.folder / "first.yaml").read_text()
    assert 2 in spec.axes["K"]


def test_scalars_that_a_kernel_takes_are_passed_and_what_it_writes_is_unknown(repository):
    kernel = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[2])
def shifted_kernel(cols):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, cols), "int32"), by: T.int32, Y: T.Tensor((rows, cols), "int32")):
        with T.Kernel(rows, threads=32) as row:
            for j in T.Parallel(cols):
                Y[row, j] = X[row, j] + by

    return main
"""
    (repository.folder / "shifted.py").write_text(kernel)
    text = (
        "import torch, shifted\nk = shifted.shifted_kernel(32)\nk(k(torch.ones(7, 32).int(), 3), 4)"
    )
    (repository.folder / "script.py").write_text(text)
    finished(repository, "record", "--trace-only", "script.py")
    first, second = read_calls(repository.folder / "calls.jsonl")["shifted:shifted_kernel"]
    assert (first.arguments["by"], second.arguments["by"]) == (3, 4)
    assert first.known
    assert not second.known  # a kernel that was only traced was to write its input
    words = ("shifted:shifted_kernel", "--calls", "calls.jsonl", "-o", "s.yaml", "--no-run")
    assert repository.tlmatrix("new", *words).code == ExitCode.OK
    assert "call: [X, by]" in (repository.folder / "s.yaml").read_text()


def test_a_product_that_is_added_to_its_output_gets_zeros(repository):
    kernel = """
import tilelang
import tilelang.language as T

@tilelang.jit
def gemm(A, B, C, block: int = 32):
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], "float16"]
    B: T.Tensor[[K, N], "float16"]
    C: T.Tensor[[M, N], "float32"]
    steps = T.ceildiv(K, block)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), steps, threads=128) as (bx, by, bz):
        a = T.alloc_shared((block, block), "float16")
        b = T.alloc_shared((block, block), "float16")
        c = T.alloc_fragment((block, block), "float32")
        T.clear(c)
        T.copy(A[by * block, bz * block], a)
        T.copy(B[bz * block, bx * block], b)
        T.gemm(a, b, c)
        for i, j in T.Parallel(block, block):
            T.atomic_add(C[by * block + i, bx * block + j], c[i, j])
"""
    (repository.folder / "split.py").write_text(kernel)
    text = """
import torch
from split import gemm

for m, n, k in ((40, 72, 96), (72, 40, 160)):
    a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
    c = torch.zeros(m, n)
    gemm(a, b, c)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=1e-2)
"""
    (repository.folder / "script.py").write_text(text)
    finished(repository, "record", "--trace-only", "script.py")
    out = finished(repository, "new", "split:gemm", "--calls", "calls.jsonl", "-o", "s.yaml")
    assert "failed" not in out, out
    assert "call: [a, b, {output: c, fill: zeros}]" in (repository.folder / "s.yaml").read_text()


def test_sizes_that_are_equal_in_the_only_call_are_told_apart(repository):
    """The script compares by TileLang's profiler, with M = N = K."""
    kernel = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[-1])
def product(M, N, K, block=32):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
            a = T.alloc_shared((block, block), "float16")
            b = T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            for k in T.serial(T.ceildiv(K, block)):
                T.copy(A[by * block, k * block], a)
                T.copy(B[k * block, bx * block], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return main

def ref_program(A, B):
    return A @ B

def main(M=64, N=64, K=64):
    kernel = product(M, N, K)
    print(kernel.get_kernel_source())
    kernel.get_profiler().assert_allclose(ref_program, rtol=1e-2, atol=1e-2)

if __name__ == "__main__":
    main()
"""
    (repository.folder / "gemm.py").write_text(kernel)
    out = finished(repository, "record", "--trace-only", "gemm.py")
    assert "1 targets in calls.jsonl" in out  # `main` takes and returns no tensor
    words = ("gemm:product", "--calls", "calls.jsonl", "-o", "gemm.yaml", "--no-run")
    assert repository.tlmatrix("new", *words).code == ExitCode.OK
    text = (repository.folder / "gemm.yaml").read_text()
    assert "A: {shape: [M, K]" in text
    assert "B: {shape: [K, N]" in text
    assert "reference: gemm:ref_program" in text


def test_sizes_and_tiles_that_are_equal_by_chance_are_two(repository):
    """The last dimension is the same in all traces; the reference takes the tile."""
    kernel = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit(out_idx=[2])
def scaled(m, n, block=64):
    @T.prim_func
    def main(
        x: T.Tensor((m, n), "float32"),
        z: T.Tensor((64,), "float32"),
        y: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(m, threads=64) as row:
            for i in T.Parallel(n):
                y[row, i] = x[row, i] * block + z[0]

    return main

def expected(x, z, block):
    return x * block + z[0]

if __name__ == "__main__":
    x, z = torch.randn(64, 64, device="cuda"), torch.randn(64, device="cuda")
    torch.testing.assert_close(scaled(64, 64)(x, z), expected(x, z, 64))
"""
    (repository.folder / "rows64.py").write_text(kernel)
    finished(repository, "record", "rows64.py")
    words = ("rows64:scaled", "--calls", "calls.jsonl", "-o", "r.yaml", "--no-run")
    assert repository.tlmatrix("new", *words).code == ExitCode.OK
    text = (repository.folder / "r.yaml").read_text()
    assert "call: {x: x, z: z, block: 64}" in text
    assert "x: {shape: [m, n]" in text
    assert "z: {shape: [64]" in text


def test_an_eager_kernel_that_is_compiled_ahead_is_recorded_as_its_function(repository):
    kernel = """
import tilelang
import tilelang.language as T

@tilelang.jit
def doubled(A, block):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], "float32"]
    B = T.empty((M, N), "float32")
    with T.Kernel(M, threads=32) as row:
        for j in T.Parallel(N):
            B[row, j] = A[row, j] * 2
    return B

def ref_program(a):
    return a * 2

if __name__ == "__main__":
    doubled.compile(M=64, N=64, block=1).get_profiler().assert_allclose(ref_program)
"""
    (repository.folder / "eager.py").write_text(kernel)
    finished(repository, "record", "--trace-only", "eager.py")
    call = read_calls(repository.folder / "calls.jsonl")["eager:doubled"][0]
    assert call.tensors["A"].shape == (64, 64)
    assert call.arguments["block"] == 1
    assert call.compared[0].function == "eager:ref_program"
    words = ("eager:doubled", "--calls", "calls.jsonl", "-o", "eager.yaml", "--no-run")
    assert repository.tlmatrix("new", *words).code == ExitCode.OK
    assert "A: {shape: [M, N]" in (repository.folder / "eager.yaml").read_text()


def test_a_script_that_fails_has_its_calls_recorded(repository):
    text = "import torch, rows\nrows.row_sum(torch.randn(3, 32, device='cuda'))\n1 / 0\n"
    (repository.folder / "script.py").write_text(text)
    with repository.start("tlmatrix", "record", "script.py") as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode != ExitCode.OK
    assert "ZeroDivisionError" in out
    assert list(read_calls(repository.folder / "calls.jsonl")) == [
        "rows:row_sum_kernel",
        "rows:row_sum",
    ]


def test_calls_after_the_exception_of_a_signal_are_recorded(repository):
    """Python takes a profile function off in which one is raised, as pytest-timeout does."""
    text = """
import sys, torch, rows

sys.setprofile(None)
for number in (1, 2):
    rows.row_sum(torch.randn(number, 32, device="cuda"))
"""
    (repository.folder / "script.py").write_text(text)
    finished(repository, "record", "script.py")
    calls = read_calls(repository.folder / "calls.jsonl")
    assert [call.tensors["x"].shape for call in calls["rows:row_sum"]] == [(2, 32)]
    assert len(calls["rows:row_sum_kernel"]) == 2


def test_an_error_before_the_program_starts_keeps_earlier_calls(repository):
    path = repository.folder / "calls.jsonl"
    path.write_text("of an earlier program\n")
    outcome = repository.tlmatrix("record", "missing.py")
    assert outcome.code == ExitCode.USAGE
    assert "no such script: missing.py" in outcome.out
    assert "targets in" not in outcome.out
    assert path.read_text() == "of an earlier program\n"


def test_an_os_error_of_the_program_is_its_own(repository):
    (repository.folder / "script.py").write_text("open('missing.bin')\n")
    outcome = repository.tlmatrix("record", "script.py")
    assert "missing.bin" in outcome.out
    assert "cannot be written" not in outcome.out


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tests/ops/gemm.py", True),
        ("test/gemm.py", True),
        ("testing/python/gemm.py", True),
        ("ops/test_gemm.py", True),
        ("ops/gemm_test.py", True),
        ("conftest.py", True),
        ("ops/gemm.py", False),
        ("ops/latest_gemm.py", False),
        ("latest/gemm.py", False),
    ],
)
def test_files_of_tests_are_known_by_their_path(path, tests):
    assert is_test_file(path) is tests


def test_a_file_that_is_none_of_calls_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text('{"target": "a:b"}\n')
    with pytest.raises(UsageError, match=r"calls\.jsonl:1: not a recorded call"):
        read_calls(path)
    with pytest.raises(UsageError, match="No such file"):
        read_calls(tmp_path / "none.jsonl")


def test_calls_are_read_back_from_a_definition_of_flashinfer(repository):
    words = ["record", "--trace-only", "--definitions", "defs", "-m", "pytest", "tests", "-q"]
    with repository.start("tlmatrix", *words) as process:
        process.communicate(timeout=120)
    data = json.loads((repository.folder / "defs" / "rows.row_sum.json").read_text())
    assert data["axes"] == {"rows": {"type": "var"}, "cols": {"type": "var"}}
    assert data["inputs"] == {"x": {"shape": ["rows", "cols"], "dtype": "float32"}}
    again = calls_of_definition(data, "rows:row_sum")
    chosen = alike(again)
    assert chosen == again
    assert {call.tensors["x"].shape for call in chosen} == {
        (rows, cols) for rows in (1, 7) for cols in (32, 64, 96)
    }
    assert definition(again)["axes"] == data["axes"]
    with pytest.raises(UsageError, match="not a trace definition"):
        calls_of_definition({}, "rows:row_sum")


def test_recorded_calls_draft_a_spec_with_their_reference(repository):
    words = ["record", "--trace-only", "-m", "pytest", "tests", "-q"]
    with repository.start("tlmatrix", *words) as process:
        process.communicate(timeout=120)
    out = finished(repository, "new", "rows:row_sum", "--calls", "calls.jsonl", "-o", "s.yaml")
    text = (repository.folder / "s.yaml").read_text()
    assert "function: tests.test_rows:expected" in text
    assert "only cols % 32 == 0: cols=33 is not refused, and is wrong: " in out
    finished(repository, "run", "s.yaml", "-n", "0")


METHOD = """
import torch
from rows import row_sum

class Base:
    def __init__(self, cols, dtype, scales=(1.0,), norm="none"):
        self.cols, self.dtype, self.scales, self.norm = cols, dtype, scales, norm

    def check(self, x):
        torch.testing.assert_close(row_sum(x), self.expected(x), rtol=1e-4, atol=1e-4)

    def expected(self, values, keep=False):
        assert values.dtype == self.dtype and self.norm == "none"
        assert values.shape[1] == self.cols, "not the recorded size"
        return values.sum(-1, keepdim=keep)

class RowSum(Base):
    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)

def first_of(x):
    return x[:1].sum(-1)

def assert_equal_at_first(result, expected):
    assert result[0].shape == expected[0].shape

def test_row_sum():
    for cols in (32, 64, 96):
        case = RowSum(cols, torch.float32, norm="none")
        case.check(torch.randn(7, cols, device="cuda"))
        x = torch.randn(7, cols, device="cuda")
        assert_equal_at_first(row_sum(x), first_of(x))
        case.check(torch.randn(1, 2 * cols, device="cuda")[:, ::2])
"""


def test_a_method_of_a_class_of_tests_is_the_reference(repository):
    (repository.folder / "tests" / "test_rows.py").write_text(METHOD)
    words = ["record", "--trace-only", "-m", "pytest", "tests", "-q"]
    with repository.start("tlmatrix", *words) as process:
        process.communicate(timeout=120)
    calls = read_calls(repository.folder / "calls.jsonl")["rows:row_sum"]
    assert {call.tensors["x"].strides for call in calls} == {
        None,
        (64 * 2, 2),
        (32 * 2, 2),
        (96 * 2, 2),
    }
    assert {each.function for call in calls for each in call.compared} == {
        "tests.test_rows:RowSum.expected"
    }
    assert calls[0].compared[0].construct == {
        "cols": 32,
        "dtype": "float32",
        "norm": "none",
        "scales": [1.0],
    }
    finished(repository, "new", "rows:row_sum", "--calls", "calls.jsonl", "-o", "s.yaml")
    text = (repository.folder / "s.yaml").read_text()
    assert "# A function made from tests.test_rows:RowSum.expected." in text
    assert "cols" in text
    finished(repository, "run", "s.yaml", "-n", "0")


INLINE = """
import pytest
import torch
from rows import row_sum

FACTOR = 2.0

@pytest.mark.parametrize("cols", [32, 64, 96])
def test_inline(cols):
    torch.manual_seed(0)
    rows = 7
    x = torch.randn(rows, cols, device="cuda")
    half, dtype, name = cols // 2, torch.float32, "float32"
    x[:, 0] = 0
    doubled = x.to(dtype).to(getattr(torch, name)) * FACTOR

    def first(values):
        return values[:, :half].sum(-1)

    expected = torch.zeros(rows, dtype=x.dtype, device=x.device)
    total = 0
    for row in range(rows):
        x[row, 0] = torch.randn(()) * 0 + x[row, 0]
        if row >= 0:
            expected[row] = first(doubled)[row] + doubled[row, half:].sum()
            total += row
    expected += total - rows * (rows - 1) // 2
    expected /= FACTOR
    out = row_sum(x)
    check(out, expected)

def check(one, two):
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)

def test_lambda():
    factor = 3.0
    compare(row_sum, lambda values: values.sum(-1) * factor / 3, torch.randn(3, 32))

def compare(actual, expected, x):
    torch.testing.assert_close(actual(x), expected(x), rtol=1e-4, atol=1e-4)

def test_of_the_kernel_itself():
    x = torch.randn(7, 32, device="cuda")
    again = row_sum(x) + 0
    torch.testing.assert_close(row_sum(x), again)
    torch.testing.assert_close(row_sum(x), x.sum(dim=-1))
"""


def test_what_a_test_computes_itself_is_the_reference(repository):
    (repository.folder / "tests" / "test_rows.py").write_text(INLINE)
    finished(repository, "record", "--trace-only", "-m", "pytest", "tests", "-q")
    calls = read_calls(repository.folder / "calls.jsonl")["rows:row_sum"]
    sources = {each.source for call in calls for each in call.compared if each.source}
    assert len(sources) == 3
    assert any("return values.sum(-1) * factor / 3" in source for source in sources)
    assert any("return x.sum(dim=-1)" in source for source in sources)
    assert not any("row_sum(" in source for source in sources)
    (long,) = (source for source in sources if "first(" in source)
    assert "from tests.test_rows import FACTOR, torch" in long
    assert "def reference(x, cols, rows):" in long
    assert "manual_seed" not in long
    assert "randn" not in long
    finished(repository, "new", "rows:row_sum", "--calls", "calls.jsonl", "-o", "s.yaml")
    text = (repository.folder / "s.yaml").read_text()
    assert "# A function made from tests.test_rows:test_inline." in text, text
    finished(repository, "run", "s.yaml", "-n", "0")


OF_TENSORS = """
import torch
from rows import row_sum

def make(rows):
    return torch.zeros(rows)

def add_sums(values, total):
    total += values.sum(-1)

def test_in_place():
    x, expected = torch.randn(7, 32, device="cuda"), make(7)
    add_sums(x, expected)
    torch.testing.assert_close(row_sum(x), expected)

def test_closure():
    x = torch.randn(7, 64, device="cuda")

    def expected():
        return x.sum(-1)

    torch.testing.assert_close(row_sum(x), expected())
"""


def test_a_reference_may_change_its_argument_or_read_a_tensor_around_it(repository):
    (repository.folder / "tests" / "test_rows.py").write_text(OF_TENSORS)
    finished(repository, "record", "--trace-only", "-m", "pytest", "tests", "-q")
    calls = read_calls(repository.folder / "calls.jsonl")["rows:row_sum"]
    one, two = (each for call in calls for each in call.compared)
    assert (one.function, one.arguments["values"]) == ("tests.test_rows:add_sums", "$x")
    assert two.arguments == {"x": "$x"}
    assert "def reference(x):\n    return x.sum(-1)" in two.source


DERIVED = """
import torch
from rows import row_sum, row_sum_kernel

def expected(values):
    return values.sum(-1)

def padded(values):
    out = torch.zeros(16)
    out[: len(values)] = values
    return out

def test_padded():
    x = torch.randn(7, 32, device="cuda")
    torch.testing.assert_close(padded(row_sum(x)), padded(expected(x)))

def test_masked():
    x = torch.randn(9, 32, device="cuda")
    out, right = row_sum(x), expected(x)
    fine = torch.isfinite(out) & torch.isfinite(right)
    torch.testing.assert_close(out[fine], right[fine])

def test_difference():
    x = torch.randn(5, 32, device="cuda")
    assert (row_sum(x) - expected(x)).abs().max() < 1e-3

def test_of_another_input():
    x, y = torch.randn(2, 5, 32, device="cuda")
    assert (row_sum(x) - torch.ones(5)).abs().max() > 0

def made(x):
    row_sum(x)
    return row_sum_kernel(32)

def test_that_makes_a_kernel():
    assert made(torch.randn(5, 32, device="cuda"))
"""


def test_what_is_computed_alike_of_both_is_compared(repository):
    """Whether it is the reference, a case shows that passes."""
    (repository.folder / "tests" / "test_rows.py").write_text(DERIVED)
    out = finished(repository, "record", "--trace-only", "-m", "pytest", "tests", "-q")
    assert "5 passed" in out, out
    calls = read_calls(repository.folder / "calls.jsonl")
    found = {call.tensors["x"].shape[0]: call.compared for call in calls["rows:row_sum"]}
    assert found.keys() == {5, 7, 9}
    for compared in found.values():
        assert [each.function for each in compared] == ["tests.test_rows:expected"]
        assert compared[0].arguments == {"values": "$x"}
        assert compared[0].guessed
    assert calls.keys() == {"rows:row_sum", "rows:row_sum_kernel"}
    finished(repository, "new", "rows:row_sum", "--calls", "calls.jsonl", "-o", "s.yaml")
    assert "function: tests.test_rows:expected" in (repository.folder / "s.yaml").read_text()


DOUBLED = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit
def doubled(A, block, factor):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], "float32"]
    B = T.empty((M, N), "float32")
    with T.Kernel(M, threads=32) as row:
        for j in T.Parallel(block):
            B[row, j] = A[row, j] * factor
    return B

def with_block(a):
    return doubled(a, a.shape[1], factor=3)

def main():
    with_block(torch.randn(3, 16, device="cuda"))
    for cols in (32, 64):
        a = torch.randn(7, cols, device="cuda")
        given = a.clone().requires_grad_()
        (given * given).sum().backward()
        torch.testing.assert_close(doubled(a, cols, factor=2), given.grad)

    def expected(values):
        assert values.dtype == torch.float32
        return values * 2

    torch.testing.assert_close(doubled(a, 64, factor=2), expected(a))

if __name__ == "__main__":
    main()
"""


def test_gradients_of_the_program_are_references(repository):
    (repository.folder / "doubling.py").write_text(DOUBLED)
    finished(repository, "record", "--trace-only", "doubling.py")
    calls = read_calls(repository.folder / "calls.jsonl")["doubling:doubled"]
    sources = {each.source for call in calls for each in call.compared}
    (of_gradient,) = (source for source in sources if "backward" in source)
    assert "def reference(given):" in of_gradient
    assert "given = given.detach().requires_grad_()" in of_gradient
    # The reference is called in float64.
    (of_function,) = sources - {of_gradient}
    assert "assert" not in of_function
    finished(repository, "new", "doubling:doubled", "--calls", "calls.jsonl", "-o", "s.yaml")
    text = (repository.folder / "s.yaml").read_text()
    assert "function made from doubling:main" in text, text
    # Its factor is that of the calls that were compared, and its block the number of columns.
    assert "factor_args" not in text
    assert "block: N" in text, text
    assert "factor: 2" in text or "factor: [2]" in text, text
    finished(repository, "run", "s.yaml", "-n", "0")


VIEWED = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit(out_idx=[1])
def viewed(rows):
    @T.prim_func
    def main(X: T.Tensor((rows, 32), "float32"), Y: T.Tensor((rows, 32), "float32")):
        with T.Kernel(rows, threads=16) as row:
            thread = T.get_thread_binding()
            pair = T.alloc_local((2,), "float32")
            flat = T.view(pair, (1, 2), "float32")
            for j in T.serial(2):
                pair[j] = X[row, thread * 2 + j]
            for j in T.serial(2):
                Y[row, thread * 2 + j] = flat[0, j] * 2
    return main

def reference(X):
    return X * 2

if __name__ == "__main__":
    x = torch.randn(6, 32, device="cuda")
    torch.testing.assert_close(viewed(len(x))(x), reference(x))
"""


def test_what_sanitizers_do_not_model_is_judged_without_them(repository):
    (repository.folder / "views.py").write_text(VIEWED)
    finished(repository, "record", "--trace-only", "views.py")
    out = finished(repository, "new", "views:viewed", "--calls", "calls.jsonl", "-o", "s.yaml")
    assert "without sanitizers: the interpreter does not model sanitizers of a view" in out
    assert "checks: {without: [sanitizers]}" in (repository.folder / "s.yaml").read_text()
    assert "passed" in finished(repository, "run", "s.yaml", "-n", "0", "--no-fuzz")
    # So is a kernel without a reference.
    compared = "torch.testing.assert_close(viewed(len(x))(x), reference(x))"
    text = VIEWED.replace(compared, "viewed(6)(x)").replace("def reference", "def twice")
    (repository.folder / "views.py").write_text(text)
    (repository.folder / "calls.jsonl").unlink()
    finished(repository, "record", "--trace-only", "views.py")
    out = finished(repository, "new", "views:viewed", "--calls", "calls.jsonl", "-o", "t.yaml")
    assert "without sanitizers: the interpreter does not model sanitizers of a view" in out
    assert "{without: [numeric, sanitizers]}" in (repository.folder / "t.yaml").read_text()


WRAPPED = """
import torch
from rows import row_sum, row_sum_kernel

def expected(values, factors):
    return values.sum(-1) * sum(factors)

def run(implementation, data):
    return implementation(data["x"])

def assert_alike(one, two):
    assert torch.nonzero(one != two).numel() == 0

def test_row_sum():
    data = {"x": torch.randn(7, 96, device="cuda")}
    written = torch.empty(7, device="cuda", requires_grad=True)
    assert not written.any()
    reference = lambda: expected(data["x"], (0.5, 0.5))
    out = row_sum(data["x"])
    assert_alike(out, reference())
    assert out.any()  # as it is what is expected now
    assert_alike(run(row_sum, data), run(lambda values: values.sum(-1), data))
    large = torch.randn(300, 300)
    assert not (large @ large).any()
    weight = torch.randn(300, 300, requires_grad=True)
    (weight @ large).sum().backward()
    assert not weight.grad.any()
    factors, out = torch.ones(7, requires_grad=True), row_sum(data["x"])
    saved = (factors * out).sum()
    assert_alike(out, reference())
    saved.backward()  # of what is changed since
    assert torch.cuda.get_device_properties(0).multi_processor_count > 100
"""


def test_a_traced_run_goes_on_after_values_are_compared(repository):
    """Functions around the reference do not hide it, of which a spec cannot write the arguments."""
    (repository.folder / "tests" / "test_rows.py").write_text(WRAPPED)
    out = finished(repository, "record", "--trace-only", "-m", "pytest", "tests", "-q")
    assert "1 passed" in out, out
    (call,) = read_calls(repository.folder / "calls.jsonl")["rows:row_sum"]
    first, second = call.compared
    assert first.function == "tests.test_rows:expected"
    assert first.arguments == {"values": "$x", "factors": [0.5, 0.5]}
    assert "return values.sum(-1)" in second.source


def test_a_conversion_that_changes_values_is_another_tensor():
    """As of bytes that are packed."""
    comparisons = Comparisons(lambda _: None, Slicer(lambda _: True, lambda _: ""), agree=True)
    x, b = torch.randn(4), torch.tensor([-3, 5], dtype=torch.int8)
    with comparisons.conversions:
        made = {"x": x.half(), "rounded": x.int(), "b": b.int(), "bytes": b.to(torch.uint8)}
    names = {name: comparisons._named(each, {"x": x, "b": b}) for name, each in made.items()}
    assert names == {"x": "$x", "rounded": "", "b": "$b", "bytes": ""}


def test_results_are_remembered_within_bounds():
    comparisons = Comparisons(lambda _: None, None, agree=True)
    for _ in range(200):
        made = Returned(torch.empty(1 << 25, dtype=torch.int8), "m:f", {}, {})
        comparisons.remember(made)
    assert len(comparisons._made) == 64
    for _ in range(200):
        comparisons.remember(Returned(torch.empty(1 << 10), "m:f", {}, {}))
    assert len(comparisons._made) > 200


EAGER = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit
def product(A, B, parts, block: int = 32):
    assert parts == 2
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], T.float32]
    B: T.Tensor[[K, N], T.float32]
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(M, block), T.ceildiv(N, block), threads=32) as (m, n):
        c = T.alloc_fragment((block, block), T.float32)
        T.clear(c)
        for i, j in T.Parallel(block, block):
            for k in T.serial(K):
                c[i, j] += A[m * block + i, k] * B[k, n * block + j]
        T.copy(c, C[m * block, n * block])
    return C

if __name__ == "__main__":
    a, b = torch.randn(2, 64, 64, device="cuda")
    torch.testing.assert_close(product(a, b, 2), a @ b, rtol=1e-4, atol=1e-4)
"""


def drafted(repository, module, name, code):
    """The text of the spec of a function that a script calls."""
    (repository.folder / f"{module}.py").write_text(code)
    finished(repository, "record", "--trace-only", f"{module}.py")
    words = (f"{module}:{name}", "--calls", "calls.jsonl", "--no-run", "-o", "s.yaml")
    assert repository.tlmatrix("new", *words).code == ExitCode.OK
    return (repository.folder / "s.yaml").read_text()


def test_an_eager_kernel_declares_its_sizes(repository):
    """Its only call has equal ones."""
    text = drafted(repository, "declared_sizes", "product", EAGER)
    assert "A: {shape: [M, K]" in text, text
    assert "B: {shape: [K, N]" in text, text


CHUNKS = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit
def scaled(X, S, block: int = 32):
    rows, width, chunk_size = T.const("rows, width, chunk_size")
    X: T.Tensor[[rows, width], T.float32]
    S: T.Tensor[[T.ceildiv(rows, chunk_size), chunk_size], T.float32]
    Y = T.empty((rows, width), T.float32)
    with T.Kernel(rows, threads=block) as row:
        for j in T.serial(width):
            Y[row, j] = X[row, j] * S[row // chunk_size, row % chunk_size]
    return Y

if __name__ == "__main__":
    x, s = torch.randn(256, 32, device="cuda"), torch.randn(4, 64, device="cuda")
    torch.testing.assert_close(scaled(x, s), x * s.flatten()[:, None])
"""


def test_a_declared_size_with_the_name_of_a_tile_is_a_dimension(repository):
    """In its only call it is twice the width, and the other dimension is named before it."""
    text = drafted(repository, "chunks", "scaled", CHUNKS)
    assert 'S: {shape: ["ceildiv(rows, chunk_size)", chunk_size]' in text, text


def test_of_methods_that_call_those_of_their_base_the_own_one_is_recorded(repository):
    text = """
import torch
from rows import row_sum

class Base:
    def forward(self, x):
        return row_sum(x)

class Op(Base):
    def forward(self, values):
        return super().forward(values)

Op().forward(torch.randn(3, 32))
"""
    (repository.folder / "script.py").write_text(text)
    finished(repository, "record", "--trace-only", "script.py")
    (call,) = read_calls(repository.folder / "calls.jsonl")["script:Op"]
    assert set(call.tensors) == {"values"}
