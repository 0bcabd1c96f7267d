"""Kernels that call modelled functions, flags above all: a block becomes a generator.

    def kernel(a, flags):
        def block(bx, by):
            ...                                  # its memory, then what it does
            yield from call_extern('tlm_wait_ge_acquire_sys', Pointer(flags, (bx,), 'flags'), 1)
        return block_launch('main', block, (4, 2), LOCATIONS)

Where it waits others run; see `sync.dispatch`.
"""

from __future__ import annotations

from typing import Any

from tlmatrix.interpreter.externs import is_modelled

from .expressions import op_name
from .launching import write_grid_check
from .source import Writer
from .statements import StatementMixin
from .values import Val, is_float, is_int, literal

__all__ = ["FlagMixin", "calls_models", "is_flag_call"]

_FLAGS = "tlm_"
_CALLS = ("tirx.call_extern", "tirx.call_pure_extern")
_PRINTS = ("debug_print_var", "debug_print_buffer_value")


def calls_models(func: Any) -> bool:
    """Whether a kernel calls a function that has a model."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, tvm.tirx.Call) and op_name(node) in _CALLS:
            found = found or is_modelled(extern_name(node))

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return found


def is_flag_call(node: Any) -> bool:
    """Whether an expression is a call of one of the functions for flags (`sync.flags`)."""
    if type(node).__name__ != "Call" or op_name(node) not in _CALLS:
        return False
    name = extern_name(node)
    return name.startswith(_FLAGS) and is_modelled(name)


def extern_name(call: Any) -> str:
    """The function that `T.call_extern` calls."""
    return str(getattr(call.args[0], "value", call.args[0]))


class FlagMixin(StatementMixin):
    """Overrides the grid, and calls of modelled functions."""

    watching = ""

    def start_flags(self) -> None:
        """Set up, before anything is generated."""
        self._of_launch = self.prologue
        self._within = False
        self.w.reserve("block_launch", "call_extern", "Pointer", "LOCATIONS")

    def on_block(self, indices: list[Any]) -> None:
        """Whoever runs the blocks tells the monitor when one starts."""

    def _grid(self, node: Any) -> None:
        if self._within:
            raise self.refuse("a second grid in a kernel with flags")
        names, extents, variables = [], [], []
        write_grid_check(self, node)
        on_grid = getattr(self, "on_grid", None)
        if on_grid is not None:
            on_grid()
        while type(node).__name__ == "For" and int(node.kind) == 4:
            extent = self.scalar(node.extent, "a grid")
            name = self.w.fresh(str(node.loop_var.name))
            hi = None if extent.hi is None else extent.hi - 1
            self.vars[node.loop_var] = Val(
                name, str(node.loop_var.dtype), lo=0, hi=hi, below=extent.code
            )
            names.append(name)
            extents.append(extent.code)
            variables.append(node.loop_var)
            node = node.body
        outer_prologue, outer = self.prologue, self.w
        self._of_launch = outer_prologue
        self.prologue = Writer(_names=outer._names)  # noqa: SLF001  # one pool of names
        self.w = Writer(_names=outer._names)  # noqa: SLF001
        self._iotas.clear()
        self._within = True
        self.stmt(node)
        self.w, inner = outer, self.w
        block = outer.fresh("block")
        with outer.block(f"def {block}({', '.join(names)})"):
            for part in (self.prologue, inner):
                for text, location in zip(part.lines, part.locations, strict=True):
                    outer.location = location
                    outer.line(text)
            # At least one yield makes it a generator.
            outer.line("yield None")
        outer.line(
            f"return block_launch({self.kernel!r}, {block}, ({', '.join(extents)},), "
            f"LOCATIONS{self.watching})"
        )
        self.prologue = outer_prologue

    def allocate(self, buffer: Any) -> None:
        """A workspace of the whole launch lies outside of its blocks."""
        if str(buffer.scope()) != "global" or not self._within:
            super().allocate(buffer)
            return
        of_block = self.prologue
        self.prologue = self._of_launch
        super().allocate(buffer)
        self.prologue = of_block

    def _call_tirx_call_extern(self, node: Any, dtype: str) -> Val:
        name = extern_name(node)
        if name in _PRINTS or not is_modelled(name):
            return super()._call_tirx_call_extern(node, dtype)
        if self.axes or self.mask is not None:
            raise self.refuse(f"a call of {name} inside T.Parallel")
        arguments = ", ".join(self._argument(arg, name) for arg in node.args[1:])
        result = self.w.fresh("t")
        self.w.line(f"{result} = yield from call_extern({name!r}, {arguments})")
        if not (is_float(dtype) or is_int(dtype) or dtype == "bool"):
            return literal(0, "int32")
        return Val(result, dtype)

    def _call_tirx_call_pure_extern(self, node: Any, dtype: str) -> Val:
        return self._call_tirx_call_extern(node, dtype)

    def _argument(self, node: Any, name: str) -> str:
        if type(node).__name__ == "Call" and op_name(node) in ("tirx.address_of", "tl.access_ptr"):
            load = node.args[0]
            buf = self.buffer(load.buffer)
            if not buf.is_global:
                raise self.refuse(f"a call of {name} on {buf.name}, which is not global memory")
            index = ", ".join(self.scalar(i, "an index").code for i in load.indices)
            return f"Pointer({buf.code}, ({index},), {buf.name!r})"
        kind = type(node).__name__
        if kind == "StringImm":
            return repr(str(node.value))
        return self.rounded(self.settled(self.scalar(node, f"an argument of {name}"))).code
