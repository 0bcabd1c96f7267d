"""The site of mkdocs.yml builds without a warning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install '.[dev]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout, done.stdout
    return folder


def test_every_page_is_built(site):
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert pages <= built


def test_pages_fetch_nothing_from_the_network(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for attribute in ('src="http', '<link rel="stylesheet" href="http', "fonts.googleapis"):
            assert attribute not in text, (page, attribute)


def test_code_blocks_are_rendered_as_code(site):
    """A fence that Markdown does not recognize would leave its backticks or options in the text."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for remnant in ("```", "<code>console exit", "<code>console numbers"):
            assert remnant not in text, (page, remnant)
