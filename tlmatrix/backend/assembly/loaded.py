"""What a function that was written as JSON has lost when it is read again, given back.

A layout is written over placeholders that TileLang knows by identity; read from JSON it has others
of the same names, and its kernel cannot be lowered: "variables (_i, _j) are used".
"""

from __future__ import annotations

from typing import Any

__all__ = ["with_layouts"]


def with_layouts(prim_func: Any) -> Any:
    """A loaded PrimFunc with the layouts that its blocks annotate made anew."""
    from tilelang import tvm

    def renewed(block: Any) -> Any:
        layouts = block.annotations.get("layout_map")
        if not layouts:
            return None
        found = {var: _renewed(layout) for var, layout in layouts.items()}
        return tvm.tirx.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            {**block.annotations, "layout_map": found},
        )

    body = tvm.tirx.stmt_functor.ir_transform(prim_func.body, None, renewed, ["tirx.SBlock"])
    return prim_func.with_body(body)


def _renewed(layout: Any) -> Any:
    from tilelang import tvm
    from tilelang.layout import Fragment, Layout

    if isinstance(layout, Fragment):
        return layout
    index = layout.get_forward_index()
    loaded: dict[str, Any] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.Var):
            loaded.setdefault(str(node.name), node)

    for expression in index:
        tvm.tirx.stmt_functor.post_order_visit(expression, visit)
    names = [str(var.name) for var in layout.get_forward_vars()]

    def forward(*variables: Any) -> list[Any]:
        known = zip(names, variables, strict=True)
        places = {loaded[name]: variable for name, variable in known if name in loaded}
        return [tvm.tirx.stmt_functor.substitute(e, places) for e in index]

    return Layout(layout.get_input_shape(), forward)
