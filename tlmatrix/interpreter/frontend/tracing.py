"""Kernels that are traced and never run: what code launches, for whoever compiles it.

`with traced(arch=...) as kernels:` gives every kernel called inside, once, with what TileLang
would have compiled it with. Their outputs are zeros, so code that reads them goes on.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["TracedKernel", "traced", "written_at"]


class TracedKernel:
    """What a `@tilelang.jit` factory returns under `traced()`.

    Attributes:
        name: the name of the PrimFunc.
        prim_func: the traced PrimFunc.
        out_idx: indices of the parameters that are outputs.
        pass_configs: TileLang's pass configurations, by their full names.
        compile_flags: flags for the device compiler.
        place: where the PrimFunc was written, `file:line`; "" if unknown.
    """

    latency: float | None = None
    config: dict[str, Any] | None = None
    ref_latency: float | None = None

    def __init__(
        self,
        prim_func: Any,
        out_idx: Sequence[int] | int | None,
        pass_configs: Mapping[Any, Any] | None,
        compile_flags: Sequence[str] | str | None,
    ) -> None:
        self.prim_func = prim_func
        self.name = str(prim_func.attrs["global_symbol"])
        count = len(prim_func.params)
        given = [out_idx] if isinstance(out_idx, int) else list(out_idx or ())
        self.out_idx = [int(k) + count if k < 0 else int(k) for k in given]
        self.pass_configs = {
            str(getattr(key, "value", key)): value for key, value in (pass_configs or {}).items()
        }
        self.compile_flags = (
            (compile_flags,) if isinstance(compile_flags, str) else tuple(compile_flags or ())
        )
        self.place = written_at(prim_func)

    def __repr__(self) -> str:
        return f"<TracedKernel {self.name}>"

    def __call__(self, *args: Any) -> Any:
        """Note the launch; outputs that TileLang would allocate are zeros.

        Raises:
            ArgumentError: for a wrong number of arguments.
        """
        from tlmatrix.interpreter.session import current

        parameters = list(self.prim_func.params)
        inputs = [p for k, p in enumerate(parameters) if k not in self.out_idx]
        if len(args) != len(inputs):
            raise ArgumentError(
                f"kernel {self.name} expected {len(inputs)} inputs, but {len(args)} are provided"
            )
        session = current()
        if session is not None and session.launched is not None:
            known = session.launched
            if not any(kernel is self for kernel in known):
                known.append(self)
        if not self.out_idx:
            return None
        sizes = self._sizes(dict(zip(inputs, args, strict=True)))
        outputs = [self._zeros(parameters[k], sizes) for k in self.out_idx]
        return outputs[0] if len(outputs) == 1 else outputs

    def _sizes(self, arguments: Mapping[Any, Any]) -> dict[Any, Any]:
        """Symbolic dimensions, by what the arguments have in their place."""
        from tilelang import tvm

        sizes = {}
        for parameter, value in arguments.items():
            if parameter not in self.prim_func.buffer_map:
                if isinstance(value, int):
                    sizes[parameter] = tvm.tirx.IntImm(parameter.dtype, value)
                continue
            shape = self.prim_func.buffer_map[parameter].shape
            for wanted, size in zip(shape, getattr(value, "shape", ()), strict=False):
                if isinstance(wanted, tvm.tirx.Var):
                    sizes[wanted] = tvm.tirx.IntImm(wanted.dtype, size)
        return sizes

    def _zeros(self, parameter: Any, sizes: Mapping[Any, Any]) -> torch.Tensor:
        from tilelang import tvm

        buffer = self.prim_func.buffer_map[parameter]
        analyzer = tvm.arith.Analyzer()
        shape = []
        for size in buffer.shape:
            bound = tvm.tirx.stmt_functor.substitute(size, sizes)
            shape.append(int(analyzer.simplify(bound)))
        return torch.zeros(shape, dtype=TILE_DTYPES[str(buffer.dtype)].torch)


def written_at(prim_func: Any) -> str:
    """Where a PrimFunc was written, `file:line`; "" if unknown."""
    code = getattr(getattr(prim_func, "orig_func", None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


@contextmanager
def traced(*, arch: str) -> Iterator[list[TracedKernel]]:
    """Trace every TileLang kernel called inside for an architecture, and run none.

    Gives the list to which each kernel is added when it is first launched.
    """
    from tlmatrix.interpreter.frontend.intercept import interpret

    launched: list[TracedKernel] = []
    with interpret(arch=arch, launched=launched):
        yield launched
