"""What all tests share."""

import pytest


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU here"))
