"""The process that lowers kernels: run as `python -m`, it answers requests line by line.

TileLang's passes are C++ that may abort, and then only this process is gone. It knows nothing of
specs. A request is {"ir", "arch", "configs"}; the answer is {"source", "kernels", "seconds"}, with
for each device function its dynamic shared memory and the threads of a block, or {"error"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tlmatrix.backend.assembly.loaded import with_layouts


def main() -> None:
    """Answer until the requests end."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers print is no answer
    import tilelang  # noqa: F401 - before the first request, so that it is not counted as its time

    for line in sys.stdin:
        answers.write(json.dumps(_lowered(json.loads(line))) + "\n")
        answers.flush()


def _lowered(request: dict[str, Any]) -> dict[str, Any]:
    import tilelang
    from tilelang import tvm

    begin = time.perf_counter()
    target = tvm.target.Target({"kind": "cuda", "arch": request["arch"]})
    try:
        prim_func = with_layouts(tvm.ir.load_json(request["ir"]))
        with target, tvm.transform.PassContext(opt_level=3, config=request["configs"]):
            artifact = tilelang.lower(prim_func, target=target)
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the answer
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
    return {"source": artifact.kernel_source, "kernels": kernels, "seconds": seconds}


if __name__ == "__main__":
    main()
