"""Fixtures of the interpreter's tests."""

import pytest
import torch

from tlmatrix.interpreter import interpret


@pytest.fixture
def interpreted():
    """Run the test with every TileLang kernel interpreted."""
    torch.manual_seed(0)
    with interpret():
        yield
