"""Workers of pytest-xdist that are forked from a server with their imports."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from typing import TYPE_CHECKING

import pytest

import preloaded_python
from tlmatrix.plugin import forked_workers
from tlmatrix.plugin.forked_workers import fork_workers, only_specs

if TYPE_CHECKING:
    from pathlib import Path

_KERNEL = """\
import multiprocessing
import os


def reference(x):
    return 2 * x


def entry(x, number):
    with open("ran", "a") as file:
        process = multiprocessing.current_process()
        file.write(f"{process.name} {os.environ['SET_LATE']}\\n")
    return 2 * x
"""
_SPEC = """\
name: doubled
problem:
  inputs: {x: {shape: [3], dtype: float32}}
  outputs: [y]
  reference: doubled:reference
entry: doubled:entry
axes: {number: [1, 2, 3, 4]}
tiers: {quick: product}
checks: [numeric]
"""
_SCRIPT = """\
import os
import sys
import pytest

print("started", flush=True)
os.environ["SET_LATE"] = "yes"
sys.exit(pytest.main(["doubled.yaml", "-q", "-n", "2"]))
"""
_INSTALLED = {
    "site/tlmatrix-9.dist-info/METADATA": "Metadata-Version: 2.1\nName: tlmatrix\nVersion: 9\n",
    "site/tlmatrix-9.dist-info/RECORD": "tlmatrix/__init__.py,,\n",
    "site/tlmatrix-9.dist-info/entry_points.txt": "[pytest11]\ntlmatrix = tlmatrix.pytest_plugin\n",
}
"""A distribution whose files include the package, as an editable install does not have it."""


def test_workers_are_forked_and_import_no_main_module(tmp_path: Path) -> None:
    """Also of a script that has no guard; they have the environment as it is when they start."""
    (tmp_path / "doubled.py").write_text(_KERNEL)
    (tmp_path / "doubled.yaml").write_text(_SPEC)
    (tmp_path / "script.py").write_text(_SCRIPT)
    done = subprocess.run(
        [preloaded_python.python(), "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("started") == 1
    assert "4 passed" in done.stdout
    assert "warning" not in done.stdout
    assert set((tmp_path / "ran").read_text().splitlines()) == {"worker yes"}


def test_sessions_with_warnings_as_errors(tmp_path: Path) -> None:
    """Of an installed package, which pytest rewrites unless its docstring declines that."""
    for name, text in {"doubled.py": _KERNEL, "doubled.yaml": _SPEC, **_INSTALLED}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    strict = ("--strict-markers", "--strict-config", "-W", "error")
    for words in (
        ("pytest", "-n", "2", *strict, "-p", "no:cacheprovider"),
        ("pytest", "-n", "0", *strict, "-p", "no:timeout"),
        ("tlmatrix", "exec", "-m", "pytest", "-n", "0", *strict),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *words, "doubled.yaml", "-q"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "SET_LATE": "yes"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "4 passed" in done.stdout


def test_other_tests_get_workers_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("")
    spec = str(tmp_path / "one.yaml")
    assert only_specs([spec, f"{spec}::rows=3", str(tmp_path / "specs")])
    assert not only_specs([spec, str(tmp_path / "tests")])
    assert not only_specs([f"{tmp_path}/tests/test_one.py::test"])
    assert not only_specs([])


@pytest.mark.parametrize("spec", [{"popen": True}, {"popen": True, "python": "pypy"}, {"ssh": "a"}])
def test_execnet_starts_what_cannot_be_forked(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, object]
) -> None:
    """A worker of another interpreter or machine; any, if the server has ended."""

    def fails(_execmodel: object) -> None:
        raise EOFError

    monkeypatch.setattr(forked_workers, "_ForkedIO", fails)
    group = types.SimpleNamespace(
        makegateway=lambda spec: ("started", spec), execmodel=None, allocate_id=lambda _spec: None
    )
    fork_workers(group)  # type: ignore[arg-type]
    wanted = types.SimpleNamespace(**({"popen": False} | spec))
    assert group.makegateway(wanted) == ("started", wanted)
