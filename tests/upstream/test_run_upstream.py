"""The runner of TileLang's programs, on a made-up checkout."""

import json
import textwrap

import pytest
import run_upstream
from upstream_child import construct
from upstream_programs import load_programs, read_overrides
from upstream_table import Result, page, refusals, summary

pytestmark = pytest.mark.usefixtures("preloaded")

KERNEL = """
import tilelang
import tilelang.language as T
import torch

N = 1 << 40


@tilelang.jit(out_idx=[-1])
def double(n, factor=2.0):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                {statement}

    return main


def main(n=N):
    x = torch.ones(n, device="cuda")
    torch.testing.assert_close(double(n)(x), 2 * x)
"""
RIGHT = KERNEL.format(statement="Y[i] = X[i] * factor")
REFUSED = KERNEL.format(statement='Y[i] = T.call_extern("float32", "unknown_function", X[i])')
MAIN = '\nif __name__ == "__main__":\n    main()\n'
TESTS = """
import pytest
import tilelang.testing
import torch
from right import double


@tilelang.testing.requires_cuda
def test_right():
    assert double(32)(torch.ones(32, device="cuda")).sum() == 64


@tilelang.testing.requires_cuda_compute_version_ge(10, 0)
def test_blackwell():
    assert double(32)(torch.ones(32, device="cuda")).sum() == 64


@tilelang.testing.requires_rocm
def test_rocm():
    pass


def test_wrong():
    assert double(32)(torch.ones(32, device="cuda")).sum() == 0


def test_crashed():
    double(32)(torch.ones(32, device="cuda")).missing


def test_no_kernel():
    pass
"""
OVERRIDES = """
examples/amd/: {skip: for AMD GPUs}
right.py: {replace: {"N = 1 << 40": "N = 32"}}
examples/stale.py: {replace: {"M = 8192": "M = 32"}}
refused.py: {replace: {"N = 1 << 40": "N = 32"}}
examples/exits.py: {arguments: "--code 0"}
examples/endless.py: {seconds: 5}
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a program of each kind."""
    files = {
        "examples/right.py": RIGHT + MAIN,
        "examples/refused.py": REFUSED + MAIN,
        "examples/wrong.py": RIGHT.replace("1 << 40", "32").replace("2 * x", "3 * x") + MAIN,
        "examples/memory.py": RIGHT + MAIN,
        "examples/library.py": "import no_such_library\nno_such_library.run()",
        "examples/exits.py": "import sys\nsys.exit(int(sys.argv[2]))",
        "examples/stale.py": "print(1)",
        "examples/amd/run.py": "print(1)",
        "examples/module.py": "def f():\n    pass",
        "examples/endless.py": "while True:\n    pass\nprint()",
        "testing/python/right.py": RIGHT.replace("1 << 40", "32"),
        "testing/python/test_kernels.py": TESTS,
    }
    for name, text in files.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    (tmp_path / "overrides.yaml").write_text(OVERRIDES)
    return tmp_path / "checkout"


def run(checkout, *words):
    """Run the runner; its exit code and the results by path."""
    folder = checkout.parent / "work"
    common = ["--folder", str(folder), "--overrides", str(checkout.parent / "overrides.yaml")]
    code = run_upstream.main([str(checkout), *words, "-j", "2", *common])
    lines = (folder / "results.jsonl").read_text().splitlines()
    return code, {r["path"]: r for r in map(json.loads, lines)}, len(lines)


def test_states_of_scripts_and_tests(checkout, capsys):
    code, results, _ = run(checkout, "--limit", "100", "--write", str(checkout.parent / "page.md"))
    assert code == 1
    states = {path.removeprefix("examples/"): r["state"] for path, r in results.items()}
    assert states == {
        "right.py": "right",
        "refused.py": "refused",
        "wrong.py": "wrong",
        "memory.py": "slow",
        "library.py": "skipped",
        "exits.py": "no kernel",
        "stale.py": "crashed",
        "amd/run.py": "skipped",
        "endless.py": "slow",
        "testing/python/test_kernels.py": "crashed",
    }
    assert "unknown_function" in results["examples/refused.py"]["detail"]
    assert results["examples/library.py"]["detail"] == "needs no_such_library"
    assert "does not contain 'M = 8192'" in results["examples/stale.py"]["detail"]
    tests = results["testing/python/test_kernels.py"]
    expected = {"right": 2, "wrong": 1, "crashed": 1, "skipped": 1, "no kernel": 1}
    assert tests["counts"] == expected
    assert [name for name, *_ in tests["tests"]] == ["test_rocm", "test_wrong", "test_crashed"]
    out = capsys.readouterr().out
    assert "1 refused: the operation tirx.call_extern" in out
    assert "tests: 2 right, 1 wrong, 1 crashed, 1 skipped, 1 no kernel" in out
    written = (checkout.parent / "page.md").read_text()
    assert "| right.py | right |" in written
    assert not (checkout / "examples" / "__pycache__").exists()


def test_lowered_code_is_judged_by_its_sanitizers_too(checkout):
    """Right at the source level; without the barrier that a pass option leaves out, a race."""
    path = checkout / "examples" / "race.py"
    text = RIGHT.replace("1 << 40", "64").replace("out_idx=[-1]", "out_idx=[-1], pass_configs=P")
    loop = "            for i in T.Parallel(n):"
    body = f"part[i] = X[i]\n{loop}\n                Y[i] = part[n - 1 - i] * factor"
    text = text.replace(loop, f"            part = T.alloc_shared((n,), 'float32')\n{loop}")
    text = text.replace("Y[i] = X[i] * factor", body)
    path.write_text("P = {'tl.disable_thread_storage_sync': True}\n" + text + MAIN)
    assert run(checkout, "race.py")[1]["examples/race.py"]["state"] == "right"
    code, results, _ = run(checkout, "race.py", "examples/right.py", "--lowered")
    assert code == 1
    assert results["examples/race.py"]["state"] == "wrong"
    assert results["examples/race.py"]["detail"].startswith("races: ")
    assert results["examples/right.py"]["state"] == "right"


def test_results_of_lowered_code_do_not_take_the_place_of_the_page(checkout, capsys):
    before = run_upstream.PAGE.read_text()
    with pytest.raises(SystemExit):
        run_upstream.main([str(checkout), "--lowered", "--write"])
    assert "upstream.md is of the source level" in capsys.readouterr().err
    assert run_upstream.PAGE.read_text() == before


def test_a_run_resumes_and_repeats_on_request(checkout):
    words = ("exits.py", "amd/")
    assert run(checkout, *words)[2] == 2
    assert run(checkout, *words)[2] == 2
    assert run(checkout, *words, "--again", "no kernel")[2] == 3
    (checkout / "examples" / "exits.py").write_text("print(2)")
    _, results, lines = run(checkout, *words)
    assert lines == 4
    assert results["examples/exits.py"]["state"] == "no kernel"


def test_without_a_checkout_it_says_how_to_get_one(capsys, tmp_path):
    assert run_upstream.main([]) == 2
    assert "git clone --depth 1 https://github.com/tile-ai/tilelang" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run_upstream.main([str(tmp_path)])
    assert "no checkout of TileLang" in capsys.readouterr().err


def test_overrides_name_keys_that_exist(tmp_path):
    read_overrides()
    path = tmp_path / "table.yaml"
    path.write_text("examples/a.py: {argument: -n 3}")
    with pytest.raises(ValueError, match=r"examples/a.py: unknown keys \['argument'\]"):
        read_overrides(path)


def test_tests_that_expect_errors_are_lowered(checkout):
    path = checkout / "testing" / "python" / "test_kernels.py"
    path.write_text(
        TESTS + "\ndef test_error():\n    with pytest.raises(ValueError):\n        pass"
    )
    lowered = {p.path for p in load_programs(checkout, {}) if p.lower}
    assert lowered == {"testing/python/test_kernels.py"}


def test_constructs_are_counted_without_their_place():
    message = "the interpreter does not model the operation tl.f (/a/b.py:3): see remedies"
    assert construct(message) == "the operation tl.f"
    message = "the interpreter does not model a parameter of dtype int4 (A), in kernel main: use"
    assert construct(message) == "a parameter of dtype int4"
    results = [
        Result(f"examples/{k}.py", "refused", "the operation tl.f", 1.0, {"refused": 1})
        for k in range(2)
    ]
    assert refusals(results) == [("the operation tl.f", 2, ["examples/0.py", "examples/1.py"])]
    assert summary(results).startswith("examples: 2 refused; 0.0% of those")
    assert "| the operation tl.f | 2 |" in page(results, "TileLang 0", "2026-01-01")


def test_failures_that_are_not_the_interpreters_are_named(checkout):
    table = checkout.parent / "overrides.yaml"
    table.write_text('testing/: {theirs: {"test_wrong": rounds, "test_crash*": no attribute}}')
    code, results, _ = run(checkout, "test_kernels")
    tests = results["testing/python/test_kernels.py"]
    assert code == 0
    assert tests["state"] == "right"
    assert tests["counts"]["theirs"] == 2
    assert ["test_wrong", "theirs", "rounds"] in tests["tests"]
