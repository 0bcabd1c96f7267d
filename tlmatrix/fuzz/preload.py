"""The imports of fuzz workers, made once in the server that they are forked from."""

from __future__ import annotations

import tlmatrix.run.preload  # noqa: F401 - first, because PyTorch reads what it sets

# isort: split
import torch.utils._sympy.functions  # noqa: F401 - the first gradient imports it
