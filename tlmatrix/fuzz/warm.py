"""What every worker of a search imports: once, in the process that workers are forked from.

It takes seven seconds of a core, which a worker in the place of a lost one does not pay again.
"""

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")  # before anything imports PyTorch

from tlmatrix.backend import backend_named  # noqa: E402
from tlmatrix.run.runner import Runner  # noqa: E402

__all__: list[str] = []

Runner(backend_named("interpreter")).prepare()
