"""Repairs the layout annotations of a PrimFunc that was loaded from JSON.

A layout is an expression over placeholder variables that TileLang compares by identity. Loading
creates new variables of the same names, and lowering then fails with "variables (_i, _j) are used".
"""

from __future__ import annotations

from typing import Any


def restore_layouts(prim_func: Any) -> Any:
    """Return the loaded PrimFunc with the layout annotations of its blocks rebuilt."""
    from tilelang import tvm

    def rebuild_block(block: Any) -> Any:
        layouts = block.annotations.get("layout_map")
        if not layouts:
            return None
        rebuilt = {var: _rebuild(layout) for var, layout in layouts.items()}
        return tvm.tirx.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            {**block.annotations, "layout_map": rebuilt},
        )

    body = tvm.tirx.stmt_functor.ir_transform(prim_func.body, None, rebuild_block, ["tirx.SBlock"])
    return prim_func.with_body(body)


def _rebuild(layout: Any) -> Any:
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
        named = zip(names, variables, strict=True)
        substitution = {loaded[name]: variable for name, variable in named if name in loaded}
        return [tvm.tirx.stmt_functor.substitute(e, substitution) for e in index]

    return Layout(layout.get_input_shape(), forward)
