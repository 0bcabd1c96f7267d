"""Child process that lowers kernels with TileLang, run with `python -m`.

TileLang's passes are C++ that may abort, which then ends only this process. Requests and answers
are lines of JSON on stdin and stdout. A request is {"ir", "arch", "configs"}. The answer is
{"source", "ir", "kernels", "seconds"}, where `ir` is the lowered IR and `kernels` has the dynamic
shared memory and the threads per block of each device function, or {"error"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tlmatrix.interpreter.patching import without_warnings


def main() -> None:
    """Answer requests until stdin closes."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # compilers print to stdout, which must carry answers alone
    import tilelang  # noqa: F401 - so that the first request is not charged for the import

    for line in sys.stdin:
        answers.write(json.dumps(_lower(json.loads(line))) + "\n")
        answers.flush()


def _lower(request: dict[str, Any]) -> dict[str, Any]:
    import tilelang
    from tilelang import tvm

    begin = time.perf_counter()
    target = tvm.target.Target({"kind": "cuda", "arch": request["arch"]})
    try:
        prim_func = restore_layouts(tvm.ir.load_json(request["ir"]))
        passes = tvm.transform.PassContext(opt_level=3, config=request["configs"])
        with target, passes, without_warnings():
            artifact = tilelang.lower(prim_func, target=target)
    except Exception as error:  # noqa: BLE001 - any compiler error is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    kernels = {}
    for function in artifact.device_mod.functions.values():
        attributes = function.attrs
        extent = attributes.get("thread_extent", {})
        sizes = [extent.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
        threads = 1
        for size in sizes:
            value = getattr(size, "value", size)
            threads = threads * value if isinstance(value, int) and threads else 0
        kernels[str(attributes["global_symbol"])] = {
            "shared": int(attributes.get("dyn_shared_memory_buf", 0)),
            "threads": threads or None,
        }
    seconds = time.perf_counter() - begin
    return {
        "source": artifact.kernel_source,
        "ir": artifact.device_mod.script(),
        "kernels": kernels,
        "seconds": seconds,
    }


# Layout annotations of a PrimFunc that was loaded from JSON ------------------------------------
#
# A layout is an expression over placeholder variables that TileLang compares by identity. Loading
# creates new variables of the same names, and lowering then fails with "variables (_i, _j) are
# used".


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


if __name__ == "__main__":
    main()
