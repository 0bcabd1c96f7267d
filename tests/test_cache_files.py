"""Caches that cannot be written, or that other users can write."""

import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import pytest

from tlmatrix import cache_files
from tlmatrix.cache_files import (
    FileCache,
    cache_folder,
    configured_folder,
    folder_problem,
    lock,
    prepare_caches,
    read_private,
    write_file,
)

_KERNEL = """\
import tilelang
import tilelang.language as T


@tilelang.jit
def doubled():
    rows = T.dynamic("rows")

    @T.prim_func
    def doubled(X: T.Tensor((rows,), "float32"), Y: T.Tensor((rows,), "float32")):
        with T.Kernel(rows, threads=32) as row:
            Y[row] = X[row] * 2

    return doubled


def reference(X):
    return X * 2
"""
_SPEC = """\
name: doubled
problem:
  inputs: {X: {shape: [rows], dtype: float32}}
  outputs: {Y: {shape: [rows], dtype: float32}}
  reference: doubled:reference
factory: doubled:doubled
call: [X, Y]
returns: [Y]
axes: {rows: [1, 2]}
checks: [numeric]
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary folder of the test, with caches nowhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    for name in ("TLMATRIX_CACHE", "XDG_CACHE_HOME", "TILELANG_CACHE_DIR", "HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    cache_files._folder_of_this_process.cache_clear()
    return tmp_path / "tmp"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_without_a_writable_home(tmp_path, workers):
    (tmp_path / "doubled.py").write_text(_KERNEL)
    (tmp_path / "doubled.yaml").write_text(_SPEC)
    short = Path(tempfile.mkdtemp(prefix="t"))  # a socket of the fork server is in it
    (tmp_path / "home").touch()
    unset = ("TLMATRIX_CACHE", "XDG_CACHE_HOME", "TILELANG_CACHE_DIR", "TLMATRIX_PROGRAMS")
    environment = {name: text for name, text in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-m", "tlmatrix", "run", "doubled.yaml", "-n", workers],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env={**environment, "HOME": f"{tmp_path}/home/x", "TMPDIR": str(short)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    (line,) = done.stderr.splitlines()
    folder = short / f"tlmatrix-{os.geteuid()}"
    assert line.startswith(
        f"tlmatrix: caches are in {folder}, in place of {tmp_path}/home/x/.cache"
    )
    assert "is not a folder" in line
    assert list((folder / "programs").iterdir())
    assert list((folder / "tilelang").iterdir())
    shutil.rmtree(short)


def test_later_processes_find_the_caches_of_the_first(temporary, monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null/home")
    folder = temporary / f"tlmatrix-{os.geteuid()}"
    assert cache_folder() == folder
    assert "TLMATRIX_CACHE and TILELANG_CACHE_DIR can name other folders" in prepare_caches()
    assert os.environ["TLMATRIX_CACHE"] == str(folder)
    assert os.environ["TILELANG_CACHE_DIR"] == str(folder / "tilelang")
    assert prepare_caches() == ""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_temporary_folder_of_another_user_is_not_used(temporary, monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null/home")
    planted = temporary / f"tlmatrix-{os.geteuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    assert cache_folder().parent == temporary
    assert cache_folder() != planted


def test_a_home_that_is_unknown(temporary, monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setenv("TLMATRIX_CACHE", str(temporary))
    assert configured_folder() == temporary
    monkeypatch.delenv("TLMATRIX_CACHE")
    assert cache_folder() == temporary / f"tlmatrix-{os.geteuid()}"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(temporary, monkeypatch, mode):
    shared = temporary / "shared"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("TLMATRIX_CACHE", str(shared))
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(shared))
    note = prepare_caches()
    assert f"in place of {shared} (other users can write to it (mode {mode:o})" in note
    assert "TILELANG" not in note
    assert cache_folder() == temporary / f"tlmatrix-{os.geteuid()}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_used(tmp_path):
    folder = tmp_path / "cache"
    assert write_file(folder / "a", b"content")
    assert read_private(folder / "a") == b"content"
    os.chown(folder / "a", 1234, -1)
    with pytest.raises(PermissionError, match=r"a: belongs to another user \(1234\)"):
        read_private(folder / "a")
    os.chown(folder, 1234, -1)
    assert "belongs to another user" in folder_problem(folder, private=True)


def test_a_planted_program_does_not_execute(tmp_path):
    class Planted:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    planted = zlib.compress(pickle.dumps(Planted()))
    folder = tmp_path / "programs"
    assert write_file(folder / "linked", planted)
    (folder / "key").write_bytes(planted)
    (folder / "key").chmod(0o666)
    (folder / "link").symlink_to("linked")
    cache = FileCache(folder)
    assert cache.find("key", dict) is None
    assert cache.find("link", dict) is None
    assert not (tmp_path / "executed").exists()
    cache.add("key", {"own": 1})
    assert cache.find("key", dict) == {"own": 1}
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_one_process_at_a_time_has_the_lock_of_a_key(tmp_path):
    cache = FileCache(tmp_path / "made")
    with cache.exclusive("key"), pytest.raises(BlockingIOError):
        lock(tmp_path / "made" / "key.lock", wait=False)
    assert list((tmp_path / "made").iterdir()) == []


def test_a_folder_that_cannot_be_created_has_no_locks(tmp_path):
    (tmp_path / "file").touch()
    cache = FileCache(tmp_path / "file" / "made")
    with cache.exclusive("key"):
        cache.add("key", 1)
    assert cache.find("key", int) is None
