"""Random tile programs: compares the interpreter with TileLang's C backend.

    python benchmarks/fidelity.py [--programs 300] [--first 0] [--seed 0] [--only K]

Each program costs a C compilation (about a second). Programs with different results are printed;
`--only K` runs program K alone and always prints it. Ctrl-C ends it early. Programs run in a child
process, which a fault of compiled C code ends: such a program is printed too, and the next one
runs. The C backend computes both values of a choice between minima or maxima, also where an index
is out of bounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "interpreter" / "fixtures"))

from tile_programs import NotCompiledError, differences, tile_program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection


def main() -> int:
    """Run the programs; the exit code is 0 if all agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    start = time.perf_counter()
    left = list(range(arguments.first, arguments.first + arguments.programs))
    if arguments.only is not None:
        left = [arguments.only]
    counts: Counter[str] = Counter()
    with suppress(KeyboardInterrupt):  # what was compared until then is counted
        while left:
            signal_number = in_child(left, counts, arguments.seed, show=arguments.only is not None)
            if left and not signal_number:
                return 2  # the child printed why
            if left:
                print(f"program {left[0]}: {signal.Signals(signal_number).name}")
                print(program_of(arguments.seed, left.pop(0)).source, flush=True)
                counts["fault"] += 1
    print(
        f"{counts['agree']} of {counts['agree'] + counts['differ']} programs agree "
        f"({counts['exact']} compared to the bit), "
        f"{counts['uncompiled']} not compilable by the C backend, "
        f"{counts['fault']} with a fault, {time.perf_counter() - start:.0f} s"
    )
    return 1 if counts["differ"] else 0


def in_child(left: list[int], counts: Counter[str], seed: int, *, show: bool) -> int:
    """Compare programs in a forked process until a signal ends it; that signal, or 0.

    What is done leaves `left` and is counted.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=compare, args=(left, seed, show, sender))
    child.start()
    sender.close()
    try:
        while True:
            counts.update(receiver.recv())
            left.pop(0)
    except EOFError:
        child.join()
    return max(0, -(child.exitcode or 0))


def compare(numbers: Sequence[int], seed: int, show: bool, sender: Connection) -> None:
    """Send, for each program, what to count."""
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            program = program_of(seed, number)
            try:
                found = differences(program, Path(folder))
            except NotCompiledError:
                sender.send(["uncompiled"])
                continue
            except Exception as error:  # noqa: BLE001  # a program that fails is a finding
                found = [f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3)]
            if found or show:
                print(f"program {number}: shape {program.shape}, inner {program.inner}")
                print(program.source, *found, "", sep="\n", flush=True)
            sender.send(["differ" if found else "agree", *["exact"] * program.exact])


def program_of(seed: int, number: int):  # noqa: ANN201 - a class of the tests
    """The program of a number."""
    return tile_program(random.Random(f"{seed}:{number}"))


if __name__ == "__main__":
    sys.exit(main())
