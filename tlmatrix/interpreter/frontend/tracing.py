"""Kernels that are traced and never run: what code launches, for backends that compile it.

`with traced(arch=...) as kernels:` gives every kernel called inside, once, with what TileLang
would have compiled it with. Their outputs are zeros, so code that reads them goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import ArgumentError

from . import session as sessions
from .programs import written_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class TracedKernel:
    """What a `@tilelang.jit` factory returns under `traced()`.

    Attributes:
        name: the name of the PrimFunc.
        prim_func: the traced PrimFunc.
        out_idx: indices of the parameters that are outputs.
        pass_configs: TileLang's pass configurations, by their full names.
        compile_flags: flags for the device compiler.
        given_out_idx, given_configs, given_flags, execution_backend: as TileLang got them; they
            are part of its cache's key.
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
        execution_backend: str | None = None,
    ) -> None:
        self.given_out_idx = out_idx
        self.given_configs = pass_configs
        self.given_flags = compile_flags
        self.execution_backend = execution_backend
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
        parameters = list(self.prim_func.params)
        inputs = [p for k, p in enumerate(parameters) if k not in self.out_idx]
        if len(args) != len(inputs):
            raise ArgumentError(
                f"kernel {self.name} expected {len(inputs)} inputs, but {len(args)} are provided"
            )
        session = sessions.current()
        if session is not None and session.launched is not None:
            known = session.launched
            if not any(kernel is self for kernel in known):
                known.append(self)
        if not self.out_idx:
            return None
        sizes = self._sizes(zip(inputs, args, strict=True))
        outputs = [
            self._zeros(self.prim_func.buffer_map[parameters[k]], sizes) for k in self.out_idx
        ]
        return outputs[0] if len(outputs) == 1 else outputs

    def _sizes(self, arguments: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """Symbolic dimensions, by what the arguments have in their place."""
        from tilelang import tvm

        sizes = {}
        for parameter, value in arguments:
            if parameter in self.prim_func.buffer_map:
                shape = self.prim_func.buffer_map[parameter].shape
                pairs = zip(shape, getattr(value, "shape", ()), strict=False)
            else:
                pairs = zip([parameter], [value] if isinstance(value, int) else [], strict=False)
            for wanted, size in pairs:
                if isinstance(wanted, tvm.tirx.Var):
                    sizes[wanted] = tvm.tirx.IntImm(wanted.dtype, size)
        return sizes

    def _zeros(self, buffer: Any, sizes: Mapping[Any, Any]) -> torch.Tensor:
        from tilelang import tvm

        substitute, simplify = tvm.tirx.stmt_functor.substitute, tvm.arith.Analyzer().simplify
        shape = [int(simplify(substitute(size, sizes))) for size in buffer.shape]
        dtype = TILE_DTYPES[str(buffer.dtype)]
        return torch.zeros(dtype.tensor_shape(shape), dtype=dtype.torch)
