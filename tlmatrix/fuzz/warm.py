"""What every worker of a search imports: once, in the process that workers are forked from.

It takes seven seconds of a core, which a worker in the place of a lost one does not pay again.
Nothing is computed here: where there is a GPU, PyTorch's first gradient starts threads, and whoever
is forked from a process with those can compute none.
"""

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")  # before anything imports PyTorch

import torch.utils._sympy.functions  # noqa: E402, F401 - which the first gradient imports

from tlmatrix.backend import backend_named  # noqa: E402
from tlmatrix.check import judge  # noqa: E402, F401

__all__: list[str] = []

with backend_named("interpreter").active():
    pass
