"""`tlmatrix.distributed` has the functions that `tlmatrix.extensions` declares."""

import inspect

import pytest

from tlmatrix import distributed
from tlmatrix.extensions import Distributed, Executors


def parameters(function, *, method):
    signature = inspect.signature(function)
    return list(signature.parameters.values())[method:], signature.return_annotation


@pytest.mark.parametrize("name", ["lint", "rank_indices", "shard", "trace"])
def test_function_has_the_declared_signature(name):
    declared = parameters(getattr(Distributed, name), method=True)
    assert parameters(getattr(distributed, name), method=False) == declared


@pytest.mark.parametrize("name", ["close", "end_case", "entry"])
def test_executors_have_the_declared_methods(name):
    declared = parameters(getattr(Executors, name), method=True)
    assert parameters(getattr(distributed.Executors, name), method=True) == declared


def test_everything_declared_is_defined():
    declared = {name for name in vars(Distributed) if not name.startswith("_")}
    assert declared == set(distributed.__all__)
