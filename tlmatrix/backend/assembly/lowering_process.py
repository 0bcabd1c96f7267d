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

from tlmatrix.backend.assembly.layouts import restore_layouts
from tlmatrix.interpreter.compiler_output import without_warnings


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


if __name__ == "__main__":
    main()
