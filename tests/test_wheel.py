"""The wheel, installed in a separate environment for another project."""

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from docs.documents import play

ROOT = Path(__file__).parents[1]
PACKAGED = ("tlmatrix", "kernels", "specs", "pyproject.toml", "README.md", "LICENSE")
VENDOR = ROOT / "tlmatrix" / "report" / "html" / "vendor"
_INI = """\
[pytest]
testpaths = specs tests
addopts = --strict-markers --strict-config -ra
filterwarnings = error
"""


def _done(*words, folder, env=None):
    """What a command prints; it must succeed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=env,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The variables of a shell in which the wheel is installed, and this tree is not."""
    # Found, not imported: setuptools refuses to be imported after the standard library's distutils.
    for name in ("pip", "setuptools"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name} to build and install the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    # The wheel comes from the source distribution, so that both are whole.
    build = "from setuptools import build_meta; print(build_meta.build_sdist('..'))"
    _done(sys.executable, "-c", build, folder=source)
    (sdist,) = folder.glob("*.tar.gz")
    _done(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, sdist, folder=folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", symlinks=True)
    binaries = folder / "env" / "bin"
    installing = ("install", "--no-deps", "--no-index", wheel)
    _done(*pip, "--python", binaries / "python", *installing, folder=folder)
    (packages,) = folder.glob("env/lib/python*/site-packages")
    # What tlmatrix needs comes from here; a path file of a path file is not read, so an editable
    # install of this tree does not come along.
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    return {**clean, "PATH": f"{binaries}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def test_the_wheel_has_the_licences_of_what_it_ships(environment):
    code = (
        "from importlib.metadata import distribution as d; found = d('tlmatrix'); "
        "print(found.metadata['License-Expression']); "
        "[print(file.locate().read_text()) for file in found.files if 'licenses' in file.parts]"
    )
    shown = _done("python", "-c", code, folder=Path(environment["PATH"].partition(":")[0]),
                  env=environment)  # fmt: skip
    assert shown.startswith("Apache-2.0 AND ISC\n")
    for name in ("LICENSE", *sorted(VENDOR.glob("LICENSE-*"))):
        assert (ROOT / name).read_text().strip() in shown, name


def test_the_wheel_works_in_another_project(environment, tmp_path):
    (tmp_path / "pytest.ini").write_text(_INI)
    where = _done("python", "-c", "import tlmatrix as t; print(t.__file__)", folder=tmp_path,
                  env=environment)  # fmt: skip
    assert str(ROOT) not in where
    # A kernel and its spec, of a page whose commands `tests/docs` runs.
    skipped = ("tlmatrix", "pytest", "python")
    assert play(ROOT / "docs/start/first-spec.md", tmp_path, environment, skip=skipped) == 0
    (tmp_path / "specs").mkdir()
    (tmp_path / "softmax.yaml").rename(tmp_path / "specs" / "softmax.yaml")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_own.py").write_text("def test_own():\n    assert True\n")
    # Rewritten, as by default, an installed package is in `test_sessions_with_warnings_as_errors`.
    words = ("-m", "pytest", "-n", "0", "--assert=plain")
    tested = _done("python", *words, folder=tmp_path, env=environment)
    assert "13 passed" in tested
    # What only the wheel carries: the specs of the kernels, the templates of the report.
    words = ("--tier", "smoke", "--no-fuzz", "--backend", "interpreter", "-n", "0")
    ran = _done("tlmatrix", "run", "--builtin", "atomics", *words, "--results", "results.jsonl",
                folder=tmp_path, env=environment)  # fmt: skip
    assert "passed" in ran
    _done("tlmatrix", "report", "results.jsonl", "-o", "r.html", folder=tmp_path, env=environment)
    assert "atomics" in (tmp_path / "r.html").read_text()
    _done("tlmatrix", "copy-spec", "gqa_varlen", folder=tmp_path, env=environment)
    listed = _done("tlmatrix", "list", "specs/gqa_varlen.yaml", folder=tmp_path, env=environment)
    assert listed.startswith("gqa_varlen")
