"""Benchmarks that need a GPU run nowhere in CI: what they import from this project exists."""

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))

pytestmark = pytest.mark.usefixtures("preloaded")


def imported(module, name):
    """Whether `from module import name` works."""
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_names_that_a_benchmark_imports_exist(path):
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
    ours = [n for n in nodes if (n.module or "").split(".")[0] in ("tlmatrix", "tlmatrix_kernels")]
    missing = [
        f"{node.module}.{alias.name}"
        for node in ours
        for alias in node.names
        if not imported(node.module, alias.name)
    ]
    assert missing == []
