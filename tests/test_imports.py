"""Imports go one way, as ARCHITECTURE.md says, and light commands import light things."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest


def test_import_rules_hold():
    # In a process of its own: import-linter turns off every logger of the one it runs in.
    script = (
        "import sys; from importlinter import cli; "
        "sys.exit(cli.lint_imports(config_filename='pyproject.toml', no_cache=True))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.fixture(scope="module")
def imports():
    """The modules that each module imports, also in functions and for type checking."""
    graph = grimp.build_graph("tlmatrix", cache_dir=None)
    modules = sorted(
        name
        for name in graph.modules
        if name != "tlmatrix" and not f"{name}.".startswith("tlmatrix.interpreter.")
    )
    return {
        name: {each for each in graph.find_modules_directly_imported_by(name) if each in modules}
        for name in modules
    }


def circle(imports):
    """One circle of imports, or None."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_no_modules_import_each_other(imports):
    assert circle(imports) is None


def test_no_packages_import_each_other(imports):
    packages = {}
    for name, imported in imports.items():
        package = ".".join(name.split(".")[:2])
        found = packages.setdefault(package, set())
        found |= {".".join(each.split(".")[:2]) for each in imported} - {package}
    assert circle(packages) is None


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
    # The specs of the kernels are data without Python.
    written.add("tlmatrix_kernels.specs")
    assert set(project["tool"]["setuptools"]["packages"]) == written


def test_every_imported_distribution_is_declared():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    declared = {
        re.split(r"[<>=\[; ]", text)[0].lower().replace("_", "-")
        for text in [*project["dependencies"], *extras]
    }
    found = {}
    for folder in ("tlmatrix", "kernels"):
        for file in (root / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module]
                found |= {name.partition(".")[0]: file for name in names}
    # Modules of a distribution of another name, and those that come with a declared one.
    other = {
        "yaml": "pyyaml",
        "_pytest": "pytest",
        "pluggy": "pytest",
        "pydantic_core": "pydantic",
        "xdist": "pytest-xdist",
        "execnet": "pytest-xdist",
        "markupsafe": "jinja2",
        "tvm": "tilelang",
        "tvm_ffi": "tilelang",
        "pynvml": "nvidia-ml-py",
        "cuda": "cuda-bindings",
        "z3": "z3-solver",
        "tlmatrix": "",
        "tlmatrix_kernels": "",
    }
    missing = {
        name: str(file.relative_to(root))
        for name, file in found.items()
        if name not in sys.stdlib_module_names
        and other.get(name, name.replace("_", "-")) not in {*declared, ""}
    }
    assert missing == {}
