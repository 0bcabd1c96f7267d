"""Interpreted kernels of this checkout beside those of another: generation, plain and sanitized.

    python benchmarks/programs.py OTHER_CHECKOUT [SPEC ...] [--rounds 5] [--cases 2]

For each spec of the other checkout, cases of its quick tier are run by both interpreters in turn,
each in a process of its own with one thread. The kernels are those of the other checkout too, so
that the interpreters alone differ. Every kernel of a case is called `rounds` times, and for 50 ms
at least, with the arguments of its first call, plain and sanitized; then both sides once more in
the other order, and the least time counts. Prints the ratio of this checkout to the other for each
kernel, and the median.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHILD = """
import json, sys, time
import torch
torch.set_num_threads(1)
from tlmatrix import interpret
from tlmatrix.interpreter import InterpretedKernel
from tlmatrix.matrix import Case
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec.loader import load_spec

path, rounds, limit, cases = sys.argv[1], *map(int, sys.argv[2:4]), json.loads(sys.argv[4])
spec = load_spec(path)
if cases is None:
    planned = (case for case in plan(spec, "quick").cases() if case.origin != "invalid")
    cases = [dict(case.values) for case, _ in zip(planned, range(limit))]
calls = {}
call = InterpretedKernel.__call__

def noting(self, *args):
    key = self.name if hasattr(self, "name") else repr(self)
    kept = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    calls.setdefault((key, tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))),
                     (self, kept))
    return call(self, *args)

InterpretedKernel.__call__ = noting
start = time.process_time()
with Runner("interpreter") as runner:
    for values in cases:
        runner.run(spec, Case(spec.name, values))
whole = time.process_time() - start
InterpretedKernel.__call__ = call
found = {"cases": cases, "whole": whole, "plain": {}, "sanitized": {}}
for kind, options in (("plain", {}), ("sanitized", {"sanitize": True, "on_report": "keep"})):
    with interpret(**options):
        for (name, shapes), (kernel, args) in calls.items():
            best, count, end = float("inf"), 0, time.perf_counter() + 0.05
            while count < rounds or time.perf_counter() < end:
                count += 1
                try:
                    begin = time.perf_counter()
                    call(kernel, *args)
                    best = min(best, time.perf_counter() - begin)
                except Exception:
                    break
            if best < float("inf"):
                found[kind][f"{name} {shapes}"] = best
print("RESULT " + json.dumps(found))
"""


def measured(
    checkout: Path, other: Path, spec: str, options: argparse.Namespace, cases: list | None
) -> dict:
    """The times of the interpreter of a checkout, with kernels and a spec of the other."""
    with tempfile.TemporaryDirectory() as folder:
        # The folder shadows the installed project; programs are generated, not read from a cache.
        (Path(folder) / "tlmatrix").symlink_to(checkout / "tlmatrix")
        (Path(folder) / "tlmatrix_kernels").symlink_to(other / "kernels")
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folder, "TLMATRIX_CACHE": folder}
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-c", CHILD, str(other / spec)),
                *(str(options.rounds), str(options.cases), json.dumps(cases)),
            ],
            env=env,
            cwd=other,
            check=True,
            capture_output=True,
            text=True,
        )
    line = next(text for text in done.stdout.splitlines() if text.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def least(a: dict, b: dict) -> dict:
    """The lesser of two measurements, for each kernel."""
    found = {"whole": min(a["whole"], b["whole"])}
    for kind in ("plain", "sanitized"):
        found[kind] = {k: min(a[kind][k], b[kind][k]) for k in a[kind] if k in b[kind]}
    return found


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", type=int, default=2)
    parser.add_argument("specs", nargs="*")
    options = parser.parse_args()
    other = options.other.resolve()
    names = options.specs or sorted(f"specs/{p.name}" for p in (other / "specs").glob("*.yaml"))
    ratios: dict[str, list[float]] = {"plain": [], "sanitized": []}
    overheads, wholes = [], []
    for spec in names:
        there = measured(other, other, spec, options, None)
        cases = there["cases"]
        here, again = (measured(ROOT, other, spec, options, cases) for _ in range(2))
        here = least(here, again)
        there = least(there, measured(other, other, spec, options, cases))
        wholes.append(here["whole"] / there["whole"])
        print(f"{spec}: whole {here['whole']:.1f} s, ratio {wholes[-1]:.2f}", flush=True)
        for kind in ("plain", "sanitized"):
            for name, seconds in here[kind].items():
                if name in there[kind]:
                    ratio = seconds / there[kind][name]
                    ratios[kind].append(ratio)
                    if ratio > 1.1:
                        print(f"  {kind} {name}: {1e3 * seconds:.2f} ms, ratio {ratio:.2f}")
        overheads += [
            here["sanitized"][k] / s for k, s in here["plain"].items() if k in here["sanitized"]
        ]
    for kind, found in ratios.items():
        slower = sum(ratio > 1.1 for ratio in found)
        middle = statistics.median(found)
        print(f"{kind}: median ratio {middle:.2f} of {len(found)} kernels, {slower} above 1.10")
    print(f"sanitized / plain: median {statistics.median(overheads):.2f}")
    print(f"whole cases: median ratio {statistics.median(wholes):.2f}")


if __name__ == "__main__":
    sys.exit(main())
