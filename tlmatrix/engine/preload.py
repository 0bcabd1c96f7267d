"""The imports that workers need, made once in the server that they are forked from.

They take five seconds, which a worker that replaces a lost one does not spend again. This module
computes nothing: with a GPU, PyTorch's first gradient starts threads, and a process forked after
that cannot compute gradients. It does not initialize CUDA either, which no fork survives.
"""

from __future__ import annotations

import gc
import os

gc.disable()  # imports keep what they create, so collecting it is a sixth of their time

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")  # before PyTorch is imported

# Whether there is a GPU is asked of NVML: asking CUDA would initialize it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

from tlmatrix.backend import backend_named  # noqa: E402

with backend_named("interpreter").active():
    pass

import torch.utils._sympy.functions  # noqa: E402, F401 - the first gradient imports it

import tlmatrix.check  # noqa: E402
import tlmatrix.engine.cases  # noqa: E402
import tlmatrix.run.runner  # noqa: E402, F401

gc.freeze()
# A case makes 100,000 objects, few of them in cycles: to look for these was a tenth of a run.
gc.set_threshold(10_000, 10, 10)
gc.enable()
