"""Imports go one way, as ARCHITECTURE.md says, and light commands import light things."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


def test_import_rules_hold():
    # In a process of its own: import-linter turns off every logger of the one it runs in.
    script = (
        "import sys; from importlinter import cli; "
        "sys.exit(cli.lint_imports(config_filename='pyproject.toml', no_cache=True))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "module",
    [
        "tlmatrix",
        "tlmatrix.cli",
        "tlmatrix.pytest_plugin",
        "tlmatrix.spec",
        "tlmatrix.matrix",
        "tlmatrix.problem",
        "tlmatrix.fuzz",
    ],
)
def test_module_imports_without_torch_or_tilelang(module):
    script = (
        f"import sys, {module}; "
        "heavy = {'torch', 'tilelang', 'tvm', 'hypothesis'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_package_is_installed():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    written = {
        ".".join(file.parent.relative_to(root).parts).replace("kernels", "tlmatrix_kernels", 1)
        for folder in ("tlmatrix", "kernels")
        for file in (root / folder).rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == written
