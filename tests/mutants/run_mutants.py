"""Run every mutant and report how many are found: `make mutants`.

    python tests/mutants/run_mutants.py [NAME...] [-j N] [--limit S] [--plain N] [--again]
        [--record]

NAME selects mutants by a part of their id (`masks/`). Results are appended as lines of JSON. A
run resumes the last one, and runs mutants with a new edit, while kernels, specs, framework and
runner are unchanged; `--again` discards earlier results. `--record` writes the
score to `score.json`, the README and `docs/results/mutants.md`. Mutants with `compile` are skipped
if there is no nvcc for their architecture. The exit code is 1 if a mutant survives, or one that is
declared silent is not.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

for _library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

from mutant_catalog import FOLDER, ROOT, Mutant, load_mutants  # noqa: E402 - after the threads
from mutant_hunt import Bits, Hunt, Plans, hunt  # noqa: E402
from mutant_score import describe, faults, page_with, readme_with, summary  # noqa: E402

from tlmatrix.backend import backend_named  # noqa: E402
from tlmatrix.backend.assembly import find_toolkit  # noqa: E402
from tlmatrix.run.runner import Runner  # noqa: E402

RESULTS = ROOT / ".tlmatrix" / "mutants.jsonl"
SCORE = FOLDER / "score.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "results" / "mutants.md"


def main(words: list[str] | None = None) -> int:
    """Run what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the ids of mutants; all by default")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes at once (2)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one mutant (60)")
    parser.add_argument("--plain", type=int, help="plain tests of each mutant, at most (all)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="discard earlier results")
    parser.add_argument(
        "--record", action="store_true", help=f"write {SCORE.name} and the README's score"
    )
    asked = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers end with us
    mutants = [
        mutant
        for mutant in load_mutants()
        if not asked.names or any(name in mutant.id for name in asked.names)
    ]
    if not mutants:
        parser.error(f"no mutant has {' or '.join(asked.names)} in its id")
    skipped = {mutant.id: why for mutant in mutants if (why := _uncompilable(mutant))}
    if skipped and asked.record:
        parser.error(f"--record needs all mutants: {', '.join(set(skipped.values()))}")
    for name, why in skipped.items():
        print(f"skipped {name}, which is found by compiling: {why}")
    mutants = [mutant for mutant in mutants if mutant.id not in skipped]
    state = _state()
    known = {} if asked.again else _read(asked.results, state)
    records = [known[mutant.key] for mutant in mutants if mutant.key in known]
    missing = [mutant for mutant in mutants if mutant.key not in known]
    if missing:
        plans = _warm(asked.plain)
        asked.results.parent.mkdir(exist_ok=True)
        with asked.results.open("a" if known else "w") as file:
            for record in _hunted(missing, plans, asked.jobs, asked.limit):
                file.write(json.dumps({"state": state, **record}) + "\n")
                file.flush()
                records.append(record)
                print(_line(record, len(records), len(mutants)), flush=True)
    print("\n".join(describe(mutants, records)))
    if asked.record:
        data = summary(mutants, records)
        SCORE.write_text(json.dumps(data, indent=2) + "\n")
        README.write_text(readme_with(data, README.read_text()))
        PAGE.write_text(page_with(data, PAGE.read_text()))
    return 1 if faults(mutants, records) else 0


def _uncompilable(mutant: Mutant) -> str:
    """The reason why a mutant that must be compiled cannot be; "" for all others."""
    if mutant.compile is None:
        return ""
    toolkit = find_toolkit()
    return "there is no nvcc" if toolkit is None else toolkit.lacks(mutant.compile)


def _warm(plain: int | None) -> Plans:
    """Import all that a child needs but the kernels, and make the cases."""
    import torch

    torch.set_num_threads(1)
    plans = Plans(plain=plain)
    Runner(backend_named("interpreter")).prepare()
    assert "tlmatrix_kernels" not in sys.modules, "a child would get these kernels, not its own"
    return plans


def _bits(plans: Plans, mutants: list[Mutant]) -> Bits:
    """The results of the unchanged kernels in the mutants' plain tests; all of them must pass."""
    plain = {test.name: test for mutant in mutants for test in plans.plain_tests(mutant)}
    if not plain:
        return {}
    record = hunt(Hunt(None, plain=tuple(plain.values()), limit=300), plans)
    if record.plain or record.trouble:
        sys.exit(f"a plain test fails without any bug: {record.plain}{record.trouble}")
    return record.bits


def _hunted(mutants: list[Mutant], plans: Plans, jobs: int, limit: float) -> Iterator[dict]:
    """The records of mutants as they come, from `jobs` processes."""
    bits = _bits(plans, mutants)
    context = multiprocessing.get_context("fork")
    waiting, done = context.SimpleQueue(), context.SimpleQueue()
    workers = [
        context.Process(target=_work, args=(waiting, done, mutants, plans, bits, limit))
        for _ in range(min(jobs, len(mutants)))
    ]
    for number in [*range(len(mutants)), *[None] * len(workers)]:
        waiting.put(number)
    for worker in workers:
        worker.start()
    try:
        for _ in mutants:
            yield done.get()
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(waiting, done, mutants: list[Mutant], plans: Plans, bits: Bits, limit: float) -> None:
    parent = os.getppid()
    while (number := waiting.get()) is not None and os.getppid() == parent:
        mutant = mutants[number]
        plain = tuple(plans.plain_tests(mutant))
        record = hunt(Hunt(mutant, tuple(plans.affected(mutant)), plain, limit), plans)
        data = record.to_json()
        found = data.pop("bits")
        data["plain_tests"] = len(found)
        same = all(bits[name] == found[name] for name in found)
        data["silent"] = bool(found) and same and not record.plain
        done.put(data)


def _state() -> str:
    """A digest of all that a result depends on, beside the edit."""
    digest = hashlib.sha256()
    folders = ("kernels", "specs", "tlmatrix", "tests/mutants")
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*")):
        ours = path.parent == FOLDER and path.suffix != ".py"  # mutants have keys of their own
        if path.suffix in (".py", ".yaml") and not ours:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _read(path: Path, state: str) -> dict[str, dict]:
    """Earlier records of the same state, by the key of the mutant."""
    if not path.exists():
        return {}
    records = (json.loads(line) for line in path.read_text().splitlines())
    return {record["key"]: record for record in records if record["state"] == state}


def _line(record: dict, done: int, total: int) -> str:
    seen = f"{record['check']}: {record['title']}" if record["found"] else "SURVIVES"
    trouble = record["trouble"].strip().rpartition("\n")[2]
    return (
        f"{done:3}/{total} {record['mutant']:<45} {record['seconds']:6.1f} s "
        f"{record['cases']:4} cases  {seen[:90]}{' !! ' + trouble if trouble else ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
