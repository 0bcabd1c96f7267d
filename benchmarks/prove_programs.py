"""What `tlmatrix exec --prove` says of the kernels of another project, by folder.

    python benchmarks/prove_programs.py tilelang CHECKOUT [NAME...] [--limit S] [--json FILE]
    python benchmarks/prove_programs.py tests CHECKOUT/tests/ops [NAME...] -- -m smoke

`tilelang` runs every example script of a checkout of TileLang, with the small shapes of
`tests/upstream/overrides.yaml`; `tests` runs each test file under a folder with pytest. One file
at a time; NAME selects files by a part of their path. A run goes on where the file of `--json`
ends. Files that launch no kernel, or need what is not installed, are left out of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "upstream"))

from upstream_programs import load_programs, read_overrides, working_copy

_TOTAL = re.compile(
    r"(\d+) of (\d+) properties of (\d+) kernels? proven, (\d+) refuted, (\d+) unknown"
)
_REFUTED = re.compile(r"^ +([\w ]+ of [^:]+): refuted: ", re.MULTILINE)
_COLUMNS = ("files", "kernels", "properties", "proven", "refuted", "unknown", "slow")


def main() -> int:
    """Run the files, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["tilelang", "tests"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="parts of the paths of files; all by default")
    parser.add_argument("--limit", type=float, default=110.0, help="seconds for one file (110)")
    parser.add_argument("--json", type=Path, help="a file for what became of each")
    words, more = sys.argv[1:], []
    if "--" in words:
        words, more = words[: words.index("--")], words[words.index("--") + 1 :]
    asked = parser.parse_intermixed_args(words)
    rows: dict[str, dict[str, Any]] = {}
    if asked.json and asked.json.exists():
        rows = json.loads(asked.json.read_text())
    with tempfile.TemporaryDirectory(prefix="tlmatrix-programs-") as copy:
        commands = _tilelang if asked.kind == "tilelang" else _tests
        for path, folder, command in commands(asked.folder.resolve(), Path(copy), more):
            if path in rows or not (not asked.names or any(n in path for n in asked.names)):
                continue
            rows[path] = _proven(folder, command, asked.limit)
            print(f"{path}: {rows[path]}", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    _print_table(rows)
    return 0


def _tilelang(checkout: Path, copy: Path, _more: list[str]) -> Any:
    """The path, the working folder and the words of each example script."""
    overrides = read_overrides()
    programs = [p for p in load_programs(checkout, overrides) if p.path.startswith("examples/")]
    working_copy(checkout, copy, programs, overrides)
    for program in programs:
        if not program.skip and not program.is_test:
            file = copy / program.path
            words = ["--arch", program.arch, file.name, *program.arguments]
            yield program.path.removeprefix("examples/"), file.parent, words


def _tests(folder: Path, _copy: Path, more: list[str]) -> Any:
    """The path, the working folder and the words of each test file."""
    for file in sorted(folder.rglob("test_*.py")):
        words = ["-m", "pytest", str(file), "-q", "-p", "no:cacheprovider", *more]
        yield str(file.relative_to(folder)), Path.cwd(), words


def _proven(folder: Path, words: list[str], limit: float) -> dict[str, Any]:
    """The counts of a file, and what is refuted; `slow` if it gave no answer in time."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tlmatrix", "exec", "--prove", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TILELANG_DISABLE_CACHE": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"slow": 1, "seconds": limit}
        output.seek(0)
        text = output.read()
    found = _TOTAL.search(text)
    numbers = [int(n) for n in found.groups()] if found else [0] * 5
    names = ("proven", "properties", "kernels", "refuted", "unknown")
    row: dict[str, Any] = dict(zip(names, numbers, strict=True))
    row["seconds"] = round(time.monotonic() - began, 1)
    if row["refuted"]:
        row["what"] = sorted(set(_REFUTED.findall(text)))
    return row


def _print_table(rows: dict[str, dict[str, Any]]) -> None:
    """The counts by the first folder of each path, and their sum."""
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    for path, row in rows.items():
        if row.get("kernels") or row.get("slow"):
            for folder in (path.partition("/")[0] if "/" in path else ".", "all"):
                folders[folder]["files"] += 1
                folders[folder].update({k: row.get(k, 0) for k in _COLUMNS[1:]})
    print(f"| folder | {' | '.join(_COLUMNS)} |\n| --- |{' ---: |' * len(_COLUMNS)}")
    for folder in [*sorted(folders.keys() - {"all"}), *folders.keys() & {"all"}]:
        counts = folders[folder]
        print(f"| {folder} | {' | '.join(str(counts[each]) for each in _COLUMNS)} |")


if __name__ == "__main__":
    sys.exit(main())
