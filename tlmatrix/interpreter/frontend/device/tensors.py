"""Tensors of `cuda`, which live on the CPU and answer that they are on the GPU.

Those that a program makes without a device, or moves to the CPU, answer that they are on the CPU,
and so does what is computed of such tensors alone. Of any other tensor it is not known.

Divisions by a number are rounded as on CUDA, which multiplies by the inverse.

PyTorch takes a function mode off while it is asked about a call, and the body of an operator that
a program registers runs within that call. So the body puts the mode on again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from tlmatrix.interpreter.gpu import is_cuda

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


_HOST = "_tlmatrix_host"
"""The attribute of a tensor that answers that it is on the CPU."""


def is_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor is known to be on the CPU."""
    return getattr(tensor, _HOST, False)


def _set_host(tensor: torch.Tensor, host: bool) -> None:
    if host or hasattr(tensor, _HOST):
        setattr(tensor, _HOST, host)


def _moved(tensor: torch.Tensor, *, to_host: bool) -> torch.Tensor:
    """A tensor that was moved between host and device: other memory, unless it is a leaf.

    A leaf that requires gradients stays itself, as it would where it is on the device already.
    """
    if tensor.requires_grad and tensor.is_leaf:
        _set_host(tensor, host=to_host and is_host(tensor))
        return tensor
    moved = tensor.clone()
    _set_host(moved, host=to_host)
    return moved


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among arguments or results, and in their lists and tuples."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [v for v in value if isinstance(v, torch.Tensor)]
    return found


class TensorsOnTheCpu(TorchFunctionMode):
    """Sends what a program asks of `cuda` to the CPU; its tensors answer that they are there.

    Attributes:
        entered: whether `stand_in()` is in force, even while PyTorch has taken the mode off.
    """

    entered = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if func is torch.device:
            # A number alone names an accelerator, and PyTorch looks for one.
            number_alone = bool(args) and isinstance(args[0], int)
            return torch.device("cuda", *args) if number_alone else func(*args, **kwargs)
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if func is torch.Tensor.to and len(args) > 1:
            if isinstance(args[1], torch.Tensor):
                return _to(args[0], _device(args[1]), args[1].dtype, *args[2:], **kwargs)
            if isinstance(args[1], (str, torch.device)):
                return _to(args[0], *args[1:], **kwargs)
        if func is torch.Tensor.to and kwargs.get("device") is not None:
            return _to(args[0], kwargs.pop("device"), *args[1:], **kwargs)
        kwargs.pop("pin_memory", None)
        if func in _DIVISIONS and len(args) == 2 and kwargs.get("rounding_mode") is None:
            inverse = _inverse(*args)
            if inverse is not None:
                kwargs.pop("rounding_mode", None)
                return _DIVISIONS[func](args[0], inverse, **kwargs)
        host = all(map(is_host, _tensors((*args, *kwargs.values()))))
        if kwargs.get("device") is None and func in _device_constructors():
            kwargs["device"] = _default_device()
        if "device" in kwargs and is_cuda(kwargs["device"]):
            kwargs["device"], host = CPU, False
        if any(isinstance(a, torch.device) and a.type == "cuda" for a in args):
            args, host = tuple(CPU if isinstance(a, torch.device) else a for a in args), False
        found = func(*args, **kwargs)
        if host:
            for tensor in _tensors((found,)):
                _set_host(tensor, host=True)
        return found


_DIVISIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (torch.div, torch.true_divide, torch.Tensor.div, torch.Tensor.true_divide), torch.mul
    ),
    torch.Tensor.__truediv__: torch.mul,
    **dict.fromkeys((torch.Tensor.div_, torch.Tensor.true_divide_), torch.Tensor.mul_),
    torch.Tensor.__itruediv__: torch.Tensor.mul_,
}
"""True divisions, and the products by an inverse that CUDA computes for them."""


def _inverse(tensor: Any, divisor: Any) -> float | None:
    """What CUDA multiplies by in `tensor / divisor`; None where it divides.

    The divisor is on the host. Its inverse has the precision in which CUDA computes: that of
    float32 for 16 bits.
    """
    if not isinstance(tensor, torch.Tensor) or not isinstance(divisor, (int, float)):
        return None
    if tensor.is_complex() or _device(tensor) != CUDA:
        return None
    precision = torch.promote_types(torch.result_type(tensor, 1.0), torch.float32)
    return float(torch.tensor(divisor, dtype=precision, device=CPU).reciprocal())


def _default_device() -> torch.device | None:
    """What `torch.set_default_device` was given: its mode is below this one and would answer."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # noqa: SLF001
    return None if context is None else context.device


def _to(tensor: torch.Tensor, device: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`tensor.to(device, ...)`."""
    to_host = not is_cuda(device)
    moved = tensor.to(device if to_host else CPU, *args, **kwargs)
    if moved is tensor:
        return _moved(tensor, to_host=to_host)
    _set_host(moved, host=to_host)
    return moved


def _device(tensor: torch.Tensor) -> torch.device:
    """Where a tensor answers that it is: on the GPU if on the CPU; `meta` stays `meta`.

    Tensors in which AOTAutograd wraps others stay where it made them: it alone asks them.
    """
    device = tensor.device
    wraps = isinstance(tensor, FunctionalTensor) or torch._is_functional_tensor(tensor)  # noqa: SLF001
    return CUDA if device.type == "cpu" and not wraps and not is_host(tensor) else device


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.data = data
    _set_host(tensor, host=is_host(data))


_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.cuda: lambda tensor, *_args, **_kwargs: _moved(tensor, to_host=False),
    torch.Tensor.cpu: lambda tensor, *_args, **_kwargs: _moved(tensor, to_host=True),
    torch.Tensor.pin_memory: lambda tensor, *_args, **_kwargs: tensor,
    torch.Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    torch.Tensor.is_cuda.__get__: lambda tensor, *_args: _device(tensor) == CUDA,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: lambda tensor, *_args: _device(tensor),
    torch.Tensor.get_device: lambda tensor: 0 if _device(tensor) == CUDA else -1,
}


def device_of_fakes(original: Any) -> property:
    """What stands for `FakeTensor.device`, which asks no mode: PyTorch's own code sees the CPU."""

    def device(fake: FakeTensor) -> torch.device:
        found: torch.device = original.fget(fake)
        caller = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001 - has no other way
        return CUDA if found.type == "cpu" and caller.partition(".")[0] != "torch" else found

    return property(device, original.fset)


def described(original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for `MetaTensorDescriber.describe_tensor`: fake tensors are made on the CPU."""

    @functools.wraps(original)
    def describe_tensor(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return replace(found, device=CPU) if found.device == CUDA else found

    return describe_tensor


def registering_fakes(original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for `FakeImplHolder.register`: a fake's tensors are on the GPU, too."""

    @functools.wraps(original)
    def register(holder: Any, fake: Any, *args: Any, **kwargs: Any) -> Any:
        return original(holder, under_stand_in(fake), *args, **kwargs)

    return register


def registering(original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for `CustomOpDef.register_kernel`, through which `custom_op` registers, too."""

    def register_kernel(operator: Any, device_types: Any, fn: Any = None, /) -> Any:
        register = original(operator, _standing_in(device_types))

        def registered(body: Callable[..., Any]) -> Any:
            register(under_stand_in(body))
            return body

        return registered if fn is None else registered(fn)

    return register_kernel


def under_stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called where tensors answer that they are on the GPU."""

    @functools.wraps(function)
    def under_mode(*args: Any, **kwargs: Any) -> Any:
        with TensorsOnTheCpu():
            return function(*args, **kwargs)

    return under_mode


def _standing_in(device_types: Any) -> Any:
    if device_types is None:
        return None
    names = [device_types] if isinstance(device_types, str) else list(device_types)
    return list(dict.fromkeys("cpu" if name == "cuda" else name for name in names))
