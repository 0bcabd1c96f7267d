"""What TileLang and TVM ask of a GPU and its driver, TileLang's profiler and autotuner."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from .cuda import no_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.interpreter.gpu import DeviceProperties


def tilelang_answers(properties: DeviceProperties) -> Iterator[tuple[Any, str, Any]]:
    """What TileLang's profiler and driver say, as (owner, name, replacement)."""
    from tilelang.autotuner import AutoTuner
    from tilelang.autotuner.param import AutotuneResult
    from tilelang.carver.arch.driver import cuda_driver
    from tilelang.contrib import nvcc
    from tilelang.cuda import target as cuda_target
    from tilelang.utils import device

    def do_bench(fn: Any = None, *_args: Any, quantiles: Any = None, **_kwargs: Any) -> Any:
        """Call the function once: a benchmark that fails on a GPU fails here too."""
        if fn is not None:
            fn()
        return no_time(quantiles)

    def tuned(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        """The first configuration: there is no time to choose by."""
        config = dict(self.configs[0]) if self.configs else {}
        given = dict(config)
        if "pass_configs" in given:
            # The tuner's own name for what is not an argument of the kernel.
            given["__pass_configs__"] = given.pop("pass_configs")
        kernel = (self.jit_compile or self._default_compile)(**given)
        return AutotuneResult(
            latency=no_time(),
            config=config,
            ref_latency=math.nan,
            libcode=kernel.source,
            func=kernel.prim_func,
            kernel=kernel,
        )

    attributes = {
        1: properties.max_threads_per_block,
        12: properties.regs_per_multiprocessor,
        81: properties.shared_memory_per_multiprocessor,
        108: properties.L2_cache_size,
    }
    yield device, "IS_CUDA", True
    yield device, "get_current_device", lambda: "cuda:0"
    yield device, "device_synchronize", lambda *_args: None
    yield cuda_driver, "get_device_attribute", lambda attr, *_args: attributes.get(int(attr), 0)
    yield from _tvm_answers(properties)
    compute_version = nvcc.get_target_compute_version

    def version(target: Any = None) -> Any:
        return compute_version(target) if target else f"{properties.major}.{properties.minor}"

    yield nvcc, "get_target_compute_version", version
    yield AutoTuner, "run", tuned
    yield cuda_target, "check_cuda_availability", lambda: True
    # The function is imported under its name into several modules.
    for module in list(sys.modules.values()):
        found = getattr(module, "__dict__", {}).get("do_bench")
        if getattr(found, "__module__", None) == "tilelang.profiler.bench":
            yield module, "do_bench", do_bench


def _tvm_answers(properties: DeviceProperties) -> Iterator[tuple[Any, str, Any]]:
    """What `tvm.cuda(0)` says: tests ask it whether to skip, and for the compute version."""
    from tilelang import tvm

    cuda = tvm.cuda(0).dlpack_device_type()
    ask = tvm.runtime.Device._GetDeviceAttr  # noqa: SLF001 - all of its properties end here
    # By TVM's DeviceAttrKind.
    attributes = {
        0: 1,
        1: properties.max_threads_per_block,
        2: properties.warp_size,
        3: properties.shared_memory_per_block,
        4: f"{properties.major}.{properties.minor}",
        5: properties.name,
        7: properties.multi_processor_count,
        8: "[1024, 1024, 64]",
        13: properties.L2_cache_size,
        14: properties.total_memory,
        15: properties.total_memory,
    }

    def answer(self: Any, kind: int, index: int, attribute: int) -> Any:
        if kind == cuda and index == 0 and attribute in attributes:
            return attributes[attribute]
        return ask(self, kind, index, attribute)

    yield tvm.runtime.Device, "_GetDeviceAttr", answer
