"""Run TileLang's own examples and tests on the interpreter: `make upstream TILELANG=DIR`.

    python tests/upstream/run_upstream.py DIR [NAME...] [-j N] [--limit S] [--again STATE,...]
        [--lowered]

DIR is a checkout of https://github.com/tile-ai/tilelang, at the version that is installed. NAME
selects files by a part of their path. Each runs in a process of its own on a copy with the
replacements of `overrides.yaml`. Results are appended as lines of JSON; a run resumes the last one
while the interpreter, the file and its overrides are unchanged. The exit code is 1 if a file is
wrong or crashed.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from upstream_programs import OVERRIDES, Program, load_programs, read_overrides, working_copy
from upstream_table import STATES, WORST_FIRST, Result, page, refusals, summary

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".tlmatrix" / "upstream"
PAGE = ROOT / "docs" / "results" / "upstream.md"
CHILD = Path(__file__).with_name("upstream_child.py")
HELP = """\
make upstream runs a checkout of TileLang's repository, which its wheels do not contain:

    git clone --depth 1 https://github.com/tile-ai/tilelang tilelang-checkout
    make upstream TILELANG=tilelang-checkout

Take the tag or commit nearest to the installed version, {version}. Some examples need einops
(pip install einops)."""


def main(words: list[str] | None = None) -> int:
    """Run what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", nargs="?", help="a checkout of TileLang's repository")
    parser.add_argument("names", nargs="*", help="parts of the paths of files; all by default")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes at once (2)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one file (120)")
    parser.add_argument("--again", metavar="STATE,...", help="discard results in these, or all")
    parser.add_argument(
        "--stale", action="store_true", help="keep results of another version of the interpreter"
    )
    parser.add_argument("--folder", type=Path, help="results and working copy")
    parser.add_argument(
        "--lowered", action="store_true", help="execute what TileLang lowers, with all sanitizers"
    )
    parser.add_argument("--overrides", type=Path, default=OVERRIDES)
    parser.add_argument("--write", nargs="?", const=PAGE, type=Path, help=f"write {PAGE.name}")
    asked = parser.parse_intermixed_args(words)
    if not asked.checkout:
        print(HELP.format(version=_version("tilelang")))
        return 2
    if asked.lowered and asked.write == PAGE:
        parser.error(f"--write: {PAGE.name} is of the source level; give --lowered another path")
    checkout = Path(asked.checkout).resolve()
    if not (checkout / "examples").is_dir():
        parser.error(f"{checkout} has no folder examples: it is no checkout of TileLang")
    overrides = read_overrides(asked.overrides)
    programs = load_programs(checkout, overrides)
    folder = asked.folder or FOLDER.with_name("upstream-lowered" if asked.lowered else FOLDER.name)
    copy = folder / "copy"
    faults = working_copy(checkout, copy, programs, overrides)
    results_file = folder / "results.jsonl"
    known = _known(results_file, set((asked.again or "").split(",")))
    chosen = [p for p in programs if not asked.names or any(n in p.path for n in asked.names)]
    interpreter = _digest(sorted((ROOT / "tlmatrix" / "interpreter").rglob("*.py")))
    level = "lowered" if asked.lowered else "source"
    keys = {p.path: f"{interpreter} {level} {_digest([checkout / p.path])} {p}" for p in chosen}
    keys = {path: hashlib.sha256(key.encode()).hexdigest()[:16] for path, key in keys.items()}
    results = {
        p.path: known[p.path]
        for p in chosen
        if p.path in known and (asked.stale or known[p.path].key == keys[p.path])
    }
    missing = [p for p in chosen if p.path not in results]
    with results_file.open("a") as file, ThreadPoolExecutor(asked.jobs) as pool:
        jobs = [
            pool.submit(run, p, copy, asked.limit, faults.get(p.path), lowered=asked.lowered)
            for p in missing
        ]
        for job in as_completed(jobs):
            result = replace(job.result(), key=keys[job.result().path])
            results[result.path] = result
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            about = result.detail.splitlines()[0][:100] if result.detail else ""
            print(f"{result.state:9} {result.seconds:6.1f} s  {result.path}  {about}", flush=True)
    table = [results[p.path] for p in chosen]
    for construct, count, _ in refusals(table):
        print(f"{count:4} refused: {construct}")
    print(summary(table))
    if asked.write:
        names = {"TileLang": "tilelang", "PyTorch": "torch", "tlmatrix": "tlmatrix"}
        versions = ", ".join(f"{name} {_version(each)}" for name, each in names.items())
        asked.write.write_text(page(table, versions, f"{datetime.now(UTC):%Y-%m-%d}"))
    return 1 if any(r.state in ("wrong", "crashed") for r in table) else 0


def run(
    program: Program, copy: Path, limit: float, fault: str | None = None, *, lowered: bool = False
) -> Result:
    """Run one program in a process of its own, for each architecture that its tests need."""
    if fault or program.skip:
        state = "crashed" if fault else "skipped"
        return Result(program.path, state, fault or program.skip, 0.0)
    start = time.monotonic()
    limit = program.seconds or limit
    level = "lowered" if lowered else "lower" if program.lower else "source"
    outcomes = _outcomes(program, copy, limit, program.arch, level)
    if program.is_test:
        merged = {o["name"]: o for o in outcomes}
        for arch in _other_architectures(outcomes, program.arch):
            for outcome in _outcomes(program, copy, limit, arch, level):
                before = merged.get(outcome["name"])
                if before is None or before["state"] == "skipped":
                    merged[outcome["name"]] = outcome
        outcomes = list(merged.values())
    for outcome in outcomes:
        for pattern, reason in program.theirs.items():
            known = fnmatch(outcome["name"], pattern) and outcome["state"] in ("wrong", "crashed")
            if known:
                outcome.update(state="theirs", detail=reason)
    counts = Counter(o["state"] for o in outcomes)
    state = next(state for state in WORST_FIRST if counts[state])
    detail = next((o["detail"] for o in outcomes if o["state"] == state), "")
    tests = [
        [o["name"], o["state"], o["detail"]]
        for o in outcomes
        if program.is_test and o["state"] not in ("right", "no kernel")
    ]
    seconds = round(time.monotonic() - start, 1)
    return Result(program.path, state, detail, seconds, dict(counts), tests)


def _other_architectures(outcomes: list[dict], arch: str) -> list[str]:
    """Architectures that skipped tests require: `Requires CUDA compute ge 10.0`."""
    found = set()
    for outcome in outcomes:
        needed = re.search(r"CUDA compute (?:ge|eq|le) (\d+)\.(\d+)", outcome["detail"])
        if outcome["state"] == "skipped" and needed:
            number = int(needed.group(1)) * 10 + int(needed.group(2))
            found.add(f"sm_{number}a" if number >= 90 else f"sm_{number}")
    return sorted(found - {arch})


def _outcomes(program: Program, copy: Path, limit: float, arch: str, level: str) -> list[dict]:
    """Outcomes of a program, with one more for a process that ended before its time."""
    file = copy / program.path
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcomes.jsonl"
        kind = "test" if program.is_test else "script"
        command = [sys.executable, str(CHILD), str(path), arch, level, kind]
        code, output = _ended([*command, file.name, *program.arguments], file.parent, limit)
        lines = path.read_text().splitlines() if path.exists() else []
    outcomes = [json.loads(line) for line in lines]
    if code is None:
        outcomes.append(_outcome("slow", f"over {limit:.0f} s", limit))
    elif code < 0:
        outcomes.append(_outcome("crashed", f"killed by {signal.Signals(-code).name}"))
    elif code and (missing := re.search(r"ModuleNotFoundError: No module named '(\w+)", output)):
        if not outcomes:
            outcomes.append(_outcome("skipped", f"needs {missing[1]}"))
    elif (code not in (0, 1, 5) and program.is_test) or (code not in (0, 5) and not outcomes):
        last = (output.strip().splitlines() or ["no output"])[-1]
        outcomes.append(_outcome("crashed", f"exit code {code}: {last}"))
    elif not outcomes:
        outcomes.append(_outcome("skipped", "no tests"))
    return outcomes


def _outcome(state: str, detail: str, seconds: float = 0.0) -> dict:
    return {"name": "", "state": state, "detail": detail, "seconds": seconds, "kernels": 0}


def _ended(command: list[str], folder: Path, limit: float) -> tuple[int | None, str]:
    """The exit code of a command, None if it exceeds its time, and what it printed."""
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TILELANG_DISABLE_CACHE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return code, output.read()


def _known(path: Path, again: set[str]) -> dict[str, Result]:
    """Earlier results by path, without those in the states `again`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or "all" in again:
        return {}
    found = (Result(**json.loads(line)) for line in path.read_text().splitlines())
    return {r.path: r for r in found if r.state not in again & {*STATES}}


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
