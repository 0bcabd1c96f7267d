"""The imports of workers of a run, made once in the server that they are forked from."""

from __future__ import annotations

import gc

import tlmatrix.run.preload  # first, because PyTorch reads what it sets

# isort: split
import _pytest.python  # noqa: F401
import pytest  # noqa: F401

import tlmatrix.plugin.items
import tlmatrix.plugin.state
import tlmatrix.run.plan
import tlmatrix.run.runner  # noqa: F401

gc.freeze()
