"""What all tests share."""

import os

import pytest

# Before anything imports numpy or torch: workers share the cores, so each has one thread.
for _library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU here"))
