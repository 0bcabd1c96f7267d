"""A stand-in for the CUDA device that a program asks PyTorch and TileLang for.

A program written for a GPU says `device="cuda"`, `.cuda()`, `torch.cuda.synchronize()`. Inside
`stand_in()` its tensors live on the CPU and answer `cuda:0`; questions about the device are
answered as the interpreter is (its name says so, nothing is allocated on a GPU). Time is the
one thing that is not answered: every measurement is NaN, and a note says so once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch._library.custom_ops import CustomOpDef
from torch._library.fake_impl import FakeImplHolder
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.meta_utils import MetaTensorDescriber

from tlmatrix.interpreter.gpu import device_properties
from tlmatrix.interpreter.patching import replaced

from .answers import tilelang_answers, torch_answers
from .tensors import (
    TensorsOnTheCpu,
    described,
    device_of_fakes,
    registering,
    registering_fakes,
)

__all__ = ["stand_in"]


@contextmanager
def stand_in(*, arch: str = "sm_90a", sms: int = 8) -> Iterator[None]:
    """Answer for `cuda:0` with the CPU until the context ends.

    Args:
        arch: the architecture the device claims, like `sm_90a`.
        sms: the number of multiprocessors it claims; persistent kernels launch that many blocks.

    Raises:
        ValueError: for an `arch` that is not like `sm_90a`.
    """
    with replaced(_of_torch(arch, sms)):
        # TileLang reads whether there is a device when it is imported: after torch answers.
        answers = list(_of_tilelang(arch, sms, len(sys.modules)))
        register = registering(CustomOpDef.register_kernel)
        fakes = registering_fakes(FakeImplHolder.register)
        describe = described(MetaTensorDescriber.describe_tensor)
        answers += [
            (CustomOpDef, "register_kernel", register),
            (FakeImplHolder, "register", fakes),
            (FakeTensor, "device", device_of_fakes(FakeTensor.device)),
            (MetaTensorDescriber, "describe_tensor", describe),
            (TensorsOnTheCpu, "entered", True),
        ]
        with replaced(answers), TensorsOnTheCpu():
            yield


@lru_cache(maxsize=4)
def _of_torch(arch: str, sms: int) -> list[tuple[Any, str, Any]]:
    return list(torch_answers(device_properties(arch, sms)))


@lru_cache(maxsize=4)
def _of_tilelang(arch: str, sms: int, modules: int) -> list[tuple[Any, str, Any]]:
    """Made anew for another number of modules, which may have imported what is replaced."""
    del modules
    return list(tilelang_answers(device_properties(arch, sms)))
