"""Operators that a program registers with PyTorch, where the CPU stands in for its GPU.

PyTorch takes a function mode off while it is asked about a call, and an operator's body runs within
that call: there its tensors would answer that they are on the CPU. So the body puts the mode on
again. What is registered for `cuda` is what runs, for that is where the tensors should be.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.overrides import TorchFunctionMode

__all__ = ["registering"]


def registering(mode: TorchFunctionMode, original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for `CustomOpDef.register_kernel`, through which `custom_op` registers, too.

    Args:
        mode: what bodies run under.
        original: PyTorch's own.
    """

    def register_kernel(operator: Any, device_types: Any, fn: Any = None, /) -> Any:
        register = original(operator, _standing_in(device_types))

        def registered(body: Callable[..., Any]) -> Any:
            @functools.wraps(body)
            def under_mode(*args: Any, **kwargs: Any) -> Any:
                with mode:
                    return body(*args, **kwargs)

            register(under_mode)
            return body

        return registered if fn is None else registered(fn)

    return register_kernel


def _standing_in(device_types: Any) -> Any:
    if device_types is None:
        return None
    names = [device_types] if isinstance(device_types, str) else list(device_types)
    return list(dict.fromkeys("cpu" if name == "cuda" else name for name in names))
