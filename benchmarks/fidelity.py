"""Random tile programs: compares the interpreter with TileLang's C backend.

    python benchmarks/fidelity.py [--programs 300] [--seed 0] [--only K]

Each program costs a C compilation (about a second). Programs with different results are printed;
`--only K` runs program K alone and always prints it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "interpreter" / "fixtures"))

from tile_programs import NotCompiledError, differences, tile_program


def main() -> int:
    """Run the programs; the exit code is 0 if all agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    start = time.perf_counter()
    bad = exact = unknown = 0
    numbers = range(arguments.programs) if arguments.only is None else [arguments.only]
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            program = tile_program(random.Random(f"{arguments.seed}:{number}"))
            try:
                found = differences(program, Path(folder))
            except NotCompiledError:
                unknown += 1
                continue
            except Exception as error:  # noqa: BLE001  # a program that fails is a finding
                found = [f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3)]
            if found or arguments.only is not None:
                print(f"program {number}: shape {program.shape}, inner {program.inner}")
                print(program.source, *found, "", sep="\n", flush=True)
            bad += bool(found)
            exact += program.exact
    count = len(numbers) - unknown
    print(
        f"{count - bad} of {count} programs agree ({exact} compared to the bit), "
        f"{unknown} not compilable by the C backend, "
        f"{time.perf_counter() - start:.0f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
