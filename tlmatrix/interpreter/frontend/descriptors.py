"""TileLang's lowered IR, and the parameters of which its host code makes TMA descriptors.

CUDA has no descriptor of an empty tensor, and host code makes all descriptors of a kernel before
its first launch. Which copies become TMA is decided by TileLang's passes, by layouts, strides,
pipelines and options; so they are asked, and only for a kernel that is called with an empty tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.compiler_output import without_warnings
from tlmatrix.interpreter.locks import TRACING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST = 90
"""The first architecture that has TMA."""


def may_be_described(func: Any, arch: str) -> frozenset[int]:
    """Positions of the parameters that a tile operation moves from or to shared memory."""
    from tilelang import tvm

    known = re.match(r"sm_(\d+)", arch)
    if known is None or int(known[1]) < _FIRST:
        return frozenset()
    moved: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.Call) and str(getattr(node.op, "name", "")).startswith(
            "tl.tileop."
        ):
            if (node.annotations or {}).get("disable_tma"):
                return
            buffers = [buffer for buffer in map(_buffer, node.args) if buffer is not None]
            if any(str(buffer.scope()).startswith("shared") for buffer in buffers):
                moved.extend(buffer.data for buffer in buffers)

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return positions(func, moved)


def _buffer(argument: Any) -> Any:
    """The buffer that an argument of a tile operation is a region of."""
    inner = getattr(argument, "args", None)
    return getattr(inner[0], "buffer", None) if inner else None


@dataclass(frozen=True)
class Lowered:
    """A PrimFunc after TileLang's passes.

    Attributes:
        device: the IRModule of the functions that run on a GPU.
        descriptors: the arguments of each TMA descriptor that host code makes: name, descriptor,
            dtype, rank, address of the tensor, shape, strides in bytes, ...
        inferred: the PrimFunc with the layouts of its fragments.
    """

    device: Any
    descriptors: tuple[Any, ...]
    inferred: Any


def lowered(func: Any, arch: str, configs: Mapping[str, Any]) -> Lowered | None:
    """Run TileLang's passes up to code generation; takes seconds.

    None for a kernel that TileLang cannot lower, which other checks report.
    """
    from tilelang import tvm
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import lower_to_host_device_ir

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    inferred: list[Any] = []

    def keep(_self: Any, module: Any, info: Any) -> None:
        if info.name == "tl.LayoutInference":
            inferred.extend(f for f in module.functions.values() if hasattr(f, "body"))

    instrument = tvm.ir.instrument.pass_instrument(type("Keep", (), {"run_after_pass": keep}))()
    options = {"config": dict(configs), "instruments": [instrument]}
    try:
        with (
            TRACING,
            without_warnings(),
            target,
            tvm.transform.PassContext(opt_level=3, **options),
        ):
            context = create_backend_context(target, None, "auto")
            host, device = lower_to_host_device_ir(func, context)[:2]
    except Exception:  # noqa: BLE001 - whatever the compiler raises
        return None
    made: list[Any] = []
    for function in host.functions.values():
        made += (function.attrs or {}).get("tma_descriptor_args", {}).values()
    return Lowered(device, tuple(made), inferred[-1] if inferred else None)


def positions(func: Any, bases: list[Any]) -> frozenset[int]:
    """The parameters that begin where one of the variables points to."""
    buffers = func.buffer_map
    return frozenset(
        position
        for position, parameter in enumerate(func.params)
        if parameter in buffers and any(buffers[parameter].data.same_as(base) for base in bases)
    )
