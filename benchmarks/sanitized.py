"""False positives of the sanitizers, on generated calls of the project's own kernels.

    python benchmarks/sanitized.py [--cases 5000] [--first 0]

Dense and packed attention forward and backward, gemm and RMS norm, with random shapes, lengths,
dtypes and options, under all default sanitizers and with declared sequences. Cases with a report
are printed. `--first` selects the first case number, to split a run over several processes.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "interpreter" / "fixtures"))

from sanitized_cases import sanitized_case

_INTERVAL = 250
"""Cases per progress line."""


def main() -> int:
    """Run the cases; the exit code is 0 if none has a report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    begin, spent = time.perf_counter(), time.process_time()
    kinds: Counter[str] = Counter()
    bad = 0
    for count in range(1, arguments.cases + 1):
        number = arguments.first + count - 1
        case = sanitized_case(number)
        kinds[case.name.split()[0]] += 1
        try:
            found = [str(report) for report in case.reports()]
        except Exception as error:  # noqa: BLE001  # a case that fails is a finding
            found = [f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3)]
        if found:
            bad += 1
            print(f"case {number}: {case.name}", *found, "", sep="\n", flush=True)
        if count % _INTERVAL == 0:
            print(f"{count} cases, {bad} with reports", flush=True)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(
        f"{arguments.cases - bad} of {arguments.cases} cases without a report ({counts}), "
        f"{time.process_time() - spent:.0f} s of CPU, {time.perf_counter() - begin:.0f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
