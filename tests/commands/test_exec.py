"""`tlmatrix exec` of modules, and what TileLang's own tests ask of a device."""

import textwrap

import pytest

import preloaded_python
from tlmatrix.cli import main

pytestmark = pytest.mark.usefixtures("preloaded")

TEST_FILE = """
import pytest
import tilelang
import tilelang.language as T
import tilelang.testing
import torch


@tilelang.jit(out_idx=[-1])
def double(n):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 64), threads=64) as b:
            for i in T.Parallel(64):
                Y[b * 64 + i] = X[b * 64 + i] * 2.0

    return main


@tilelang.testing.requires_cuda
def test_double():
    x = torch.randn(100, device="cuda")
    torch.testing.assert_close(double(100)(x), 2 * x)


@tilelang.testing.requires_cuda_compute_version_ge(9, 0)
def test_hopper():
    assert "__global__" in double(64).get_kernel_source()


@tilelang.testing.requires_cuda_compute_version_ge(10, 0)
def test_blackwell():
    pass


@tilelang.testing.requires_rocm
def test_rocm():
    pass


def test_that_fails():
    assert double(64)(torch.ones(64, device="cuda")).sum() == 0
"""


def test_pytest_runs_the_tests_that_need_a_device(tmp_path):
    (tmp_path / "test_file.py").write_text(TEST_FILE)
    words = ["-m", "tlmatrix", "exec", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"]
    done = preloaded_python.run(*words, "test_file.py", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 2 passed, 2 skipped" in done.stdout
    assert "Requires CUDA compute ge 10.0, but have 9.0" in done.stdout


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Write a module into the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))

    return write


def test_a_module_of_the_working_folder(program, capsys):
    program("exec_package/__init__.py", "")
    program(
        "exec_package/__main__.py",
        "import sys, torch\nprint(__name__, torch.ones(1, device='cuda').device, sys.argv[1:])",
    )
    assert main(["exec", "-m", "exec_package", "-m", "x"]) == 0
    assert capsys.readouterr().out == "__main__ cuda:0 ['-m', 'x']\n"


def test_a_module_behind_two_dashes(program, capsys):
    program("exec_shown.py", "import sys\nprint(__name__, sys.argv[1:])")
    assert main(["exec", "--sms", "4", "--", "-m", "exec_shown", "-m", "x"]) == 0
    assert capsys.readouterr().out == "__main__ ['-m', 'x']\n"


@pytest.mark.parametrize("name", ["exec_nothing", "exec_nothing.part"])
def test_a_module_that_does_not_exist(name, capsys):
    assert main(["exec", "-m", name]) == 2
    assert f"no such module: {name}" in capsys.readouterr().err


REFUSED_BY_TILELANG = """
    import tilelang
    import tilelang.language as T

    @tilelang.jit
    def summed():
        @T.prim_func
        def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=128):
                a = T.alloc_fragment((64,), "float32")
                T.copy(X, a)
                for i in T.serial(64):
                    a[i] = a[i] + 1.0
                T.copy(a, Y)

        return main

    summed()
    """


def test_errors_of_tilelangs_compiler_are_raised_on_request(program, capsys):
    program("exec_serial.py", REFUSED_BY_TILELANG)
    assert main(["exec", "exec_serial.py"]) == 0
    capsys.readouterr()
    assert main(["exec", "--lower", "exec_serial.py"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_profiler_records_the_host(program, capsys):
    program(
        "exec_profile.py",
        """
        import torch
        from torch.profiler import ProfilerActivity, profile

        x = torch.ones(8, 8, device="cuda")
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            x @ x
        print(recorded.key_averages().table(sort_by="cuda_time_total"))
        """,
    )
    assert main(["exec", "exec_profile.py"]) == 0
    assert "aten::mm" in capsys.readouterr().out


@pytest.mark.parametrize(("target", "code"), [("sm_86", 1), ("sm_90a", 0)])
def test_a_kernel_is_lowered_for_the_target_that_it_names(program, target, code, capsys):
    program(
        "exec_barrier.py",
        f"""
        import tilelang
        import tilelang.language as T

        @T.prim_func
        def main(C: T.Tensor((1,), "float32")):
            with T.Kernel(1, threads=1):
                T.alloc_barrier(1)
                C[0] = 0.0

        tilelang.compile(main, target={{"kind": "cuda", "arch": "{target}"}})
        """,
    )
    assert main(["exec", "--lower", "exec_barrier.py"]) == code
    assert ("barrier" in capsys.readouterr().err) == bool(code)


def test_a_kernel_runs_once_on_inputs_of_the_profiler(program, capsys):
    lines = TEST_FILE.split("@tilelang.testing", maxsplit=1)[0]
    program("exec_once.py", lines + "print(double(64).run_once().shape)")
    assert main(["exec", "exec_once.py"]) == 0
    assert capsys.readouterr().out == "torch.Size([64])\n"


RACY = """
import sys

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def kernel(n):
    @T.prim_func
    def main(S: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=128):
            S[0] = S[0] + 1.0

    return main


def test_kernel():
    kernel(4)(torch.zeros(4))


if __name__ == "__main__":
    test_kernel()
    sys.exit(0)
"""


@pytest.mark.parametrize(
    ("module", "sanitize", "code"),
    [
        (["-m", "pytest", "-q", "-p", "no:cacheprovider"], ["--sanitize"], 1),
        (["-m", "pytest", "-q", "-p", "no:cacheprovider"], [], 0),
        ([], ["--sanitize"], 1),
    ],
)
def test_a_report_decides_the_exit_code_of_a_program_that_exits(tmp_path, module, sanitize, code):
    (tmp_path / "test_racy.py").write_text(RACY)
    words = ["-m", "tlmatrix", "exec", *sanitize, *module, "test_racy.py"]
    ran = preloaded_python.run(*words, cwd=tmp_path)
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert ("lanes: S[0]" in ran.stderr) == bool(sanitize)
