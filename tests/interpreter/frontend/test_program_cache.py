"""Programs on disk: found by other processes, generated again if damaged, removed if unused."""

import os
import runpy
import subprocess
import sys
import tempfile

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix import cache_files
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.frontend import programs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path))
    monkeypatch.delenv("TLMATRIX_PROGRAMS", raising=False)
    return tmp_path / "programs"


@pytest.fixture
def generated(monkeypatch):
    """The options of all programs that are generated."""
    made = []
    generate = programs.generate

    def counted(func, text, options):
        made.append(options)
        return generate(func, text, options)

    monkeypatch.setattr(programs, "generate", counted)
    return made


def run(value=3.0, **options):
    """Run a kernel that this process has not seen."""

    @jit_kernel(out_idx=[-1], threads=32)
    def transposed(X: T.Tensor((8, 16), "float32"), Y: T.Tensor((8, 16), "float32")):
        T.annotate_layout({Y: T.Layout((8, 16), lambda i, j: [j, i])})
        for i, j in T.Parallel(8, 16):
            Y[i, j] = X[i, j] + value

    programs._known.clear()
    x = torch.randn(8, 16)
    with interpret(**options) as session:
        assert torch.equal(transposed()(x).view(16, 8).T, x + value)
    return session


def test_a_program_is_generated_once(folder, generated):
    run()
    assert len(generated) == len(list(folder.iterdir())) == 1
    run()
    assert len(generated) == 1


def test_variants_and_kernels_have_programs_of_their_own(folder, generated):
    run()
    run(4.0)
    assert not run(sanitize=True).reports
    assert not run(sanitize={"bounds"}).reports
    assert run(sanitize=True, coverage=True).coverage.lines
    assert len(generated) == len(list(folder.iterdir())) == 5
    assert not run(sanitize=True).reports
    assert run(sanitize=True, coverage=True).coverage.lines
    assert len(generated) == 5


@pytest.mark.parametrize(("annotated", "programs_made"), [(True, 2), (False, 1)])
def test_only_annotated_layouts_make_a_program_depend_on_the_architecture(
    folder, generated, annotated, programs_made
):
    @jit_kernel(out_idx=[-1], threads=32)
    def added(X: T.Tensor((8, 16), "float32"), Y: T.Tensor((8, 16), "float32")):
        if annotated:
            T.annotate_layout({Y: T.Layout((8, 16), lambda i, j: [j, i])})
        for i, j in T.Parallel(8, 16):
            Y[i, j] = X[i, j] + 1

    programs._known.clear()
    x = torch.randn(8, 16)
    for arch in ("sm_90a", "sm_80"):
        with interpret(arch=arch):
            found = added()(x)
            assert torch.equal(found.view(16, 8).T if annotated else found, x + 1)
    assert len(generated) == len(list(folder.iterdir())) == programs_made


def test_other_sources_of_the_interpreter_have_other_programs(folder, generated, monkeypatch):
    run()
    monkeypatch.setattr(programs, "_interpreter", lambda: "changed")
    run()
    assert len(generated) == 2


@pytest.mark.parametrize("configs", [{}, {"tl.disable_safe_memory_legalize": True}])
def test_a_kernel_is_lowered_once_for_its_options(folder, monkeypatch, configs):
    lowered = []
    lower = programs.lowering.lower

    def counted(func, arch, options):
        lowered.append(options)
        return lower(func, arch, options)

    monkeypatch.setattr(programs.lowering, "lower", counted)

    def reports(options):
        n = T.dynamic("n")

        @jit_kernel(pass_configs=options, threads=8)
        def doubled(X: T.Tensor((n, 8), "float16"), Y: T.Tensor((n, 8), "float16")):
            for i, j in T.Parallel(8, 8):
                Y[i, j] = X[i, j] + X[i, j]

        programs._known.clear()
        x = torch.ones(65, dtype=torch.float16)[1:].view(8, 8)
        with interpret(sanitize={"alignment"}, arch="sm_90a") as session:
            doubled()(x, torch.empty_like(x))
        return [report.message for report in session.reports]

    found = reports(configs)
    assert found == reports(configs)
    assert "X begins 2 bytes after a multiple of 16" in found[0]
    assert len(lowered) == 1
    reports({"tl.disable_vectorize_256": True})
    assert len(lowered) == 2
    # What TileLang makes of it outlives a change of the interpreter.
    monkeypatch.setattr(programs, "_interpreter", lambda: "changed")
    assert found == reports(configs)
    assert len(lowered) == 2


@pytest.mark.parametrize("content", [b"", b"damaged", "shorter"])
def test_a_damaged_file_is_written_again(folder, generated, content):
    run()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content == "shorter" else content)
    run()
    assert len(generated) == 2
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, generated):
    monkeypatch.delenv("TLMATRIX_PROGRAMS", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run()
    run()
    assert len(generated) == 1
    assert len(list(tmp_path.glob("tlmatrix-*/programs/*"))) == 1


def test_the_cache_can_be_turned_off(folder, generated, monkeypatch):
    monkeypatch.setenv("TLMATRIX_PROGRAMS", "off")
    run()
    run()
    assert len(generated) == 2
    assert not folder.exists()


def test_programs_that_were_used_longest_ago_are_removed(folder, monkeypatch):
    run()
    (first,) = folder.iterdir()
    content = cache_files.FileCache(folder).find(first.name, object)
    size = first.stat().st_size
    monkeypatch.setattr(cache_files, "_WRITES", 1)
    store = cache_files.FileCache(folder, limit=5 * size)
    for number in range(1, 8):
        store.add(f"key {number}", content)
        for age, file in enumerate([first, *(folder / f"key {n}" for n in range(1, number + 1))]):
            if file.exists():
                os.utime(file, (1000 + age, 1000 + age))
        assert store.find(first.name, object) is not None  # which makes it the last one used
    left = {file.name for file in folder.iterdir()}
    assert first.name in left
    assert "key 1" not in left
    assert "key 7" in left
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 5 * size


_RUN = """
import tilelang, tilelang.language as T, torch
from tlmatrix.interpreter import generate, interpret

@tilelang.jit(out_idx=[-1])
def ones():
    @T.prim_func
    def main(Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                Y[i] = 1.0
    return main

with interpret(sanitize=True):
    assert ones()().eq(1).all()
"""


def test_processes_share_programs(folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_RUN)
    runpy.run_path(str(script))
    (written,) = folder.iterdir()
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, str(script)], check=True, env=environment)
    assert list(folder.iterdir()) == [written]
