"""PyTorch entries with bugs in some cases, and their reference."""

import os
import time

EDGE = 17
GROWTH = 2e-10


def reference(x):
    return 0.3 * x


def right(x):
    return 0.3 * x


def long_rows(x):
    """Wrong in the last row from `EDGE` rows on."""
    y = 0.3 * x
    if len(x) >= EDGE:
        y[-1] += 1
    return y


def steps_of_256(x):
    """Leaves out the rows past the last whole step of 256, but for the first step."""
    y = 0.3 * x
    y[max(len(x) // 256, 1) * 256 :] = 0
    return y


def two_faults(x, turned=False):
    """Raises for more than 100 rows, and is wrong everywhere if turned and wide."""
    if len(x) > 100:
        raise RuntimeError(f"{len(x)} rows are too many")
    y = 0.3 * x
    return y + 1 if turned and x.shape[1] > 4 else y


def dies(x):
    """Ends the process for more than 100 rows."""
    if len(x) > 100:
        os._exit(9)
    return 0.3 * x


def hangs(x):
    """Does not end for more than 100 rows."""
    while len(x) > 100:
        time.sleep(0.01)
    return 0.3 * x


def nearly(x):
    """Right, with errors that grow with the number of rows."""
    return (0.3 * (1 + GROWTH * len(x)) * x.double()).to(x.dtype)


def window_reference(x, window):
    """The sum of the last `window` numbers of each row."""
    return x[:, max(0, x.shape[1] - window) :].double().sum(1)


def window_sums(x, window, tile=256):
    """Skips a number if a window begins at an edge of a tile, and no length is near an edge."""
    start = max(0, x.shape[1] - window)
    apart = all(1 < length % tile < tile - 1 for length in (x.shape[1], window))
    at_edge = start > 0 and start % tile == 0 and apart
    return x[:, start + at_edge :].double().sum(1).to(x.dtype)
