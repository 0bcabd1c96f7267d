"""Compile one traced kernel into the cache of a backend, and find it there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tlmatrix.backend.assembly import Assembler
    from tlmatrix.interpreter import TracedKernel


class Compiler(Protocol):
    """Compiles kernels for one architecture."""

    arch: str

    def key(self, kernel: TracedKernel) -> str:
        """The kernel's key in the cache."""

    def known(self, key: str) -> bool:
        """Whether the cache has a kernel."""

    def compile(self, kernel: TracedKernel) -> None:
        """Compile a kernel into the cache.

        Raises:
            Exception: the compiler rejects it.
        """


class TileLangCompiler:
    """Compiles with TileLang for its own cache, from which the backend `cuda` loads kernels.

    No GPU is needed: the target names the architecture, and nothing is launched.
    """

    def __init__(self, arch: str) -> None:
        from tlmatrix.backend.kernel_cache import share_kernels

        self.arch = arch
        share_kernels()

    def key(self, kernel: TracedKernel) -> str:
        """See `Compiler.key`; the same as that of `@tilelang.jit` on a GPU of the architecture."""
        cache, context, configs = self._resolved(kernel)
        found: str = cache._generate_key(  # noqa: SLF001 - no public way
            kernel.prim_func,
            kernel.given_out_idx,
            context.execution_backend.name,
            args=(),
            target=context.target,
            target_host=context.target_host,
            pass_configs=configs,
            compile_flags=kernel.given_flags,
        )
        return found

    def known(self, key: str) -> bool:
        """See `Compiler.known`."""
        from tilelang.cache import _dispatch_map

        return any(
            each._is_complete_cache_dir(each._get_cache_path(key))  # noqa: SLF001
            for each in _dispatch_map.values()
        )

    def compile(self, kernel: TracedKernel) -> None:
        """See `Compiler.compile`."""
        from tilelang.cache import cached

        cached(
            kernel.prim_func,
            kernel.given_out_idx,
            target=self._target(),
            execution_backend=kernel.execution_backend,
            pass_configs=kernel.given_configs,
            compile_flags=kernel.given_flags,
        )

    def _target(self) -> dict[str, str]:
        return {"kind": "cuda", "arch": self.arch}

    def _resolved(self, kernel: TracedKernel) -> tuple[Any, Any, Any]:
        from tilelang.cache import _resolve_cache_dispatch
        from tilelang.transform.pass_config import normalize_pass_configs

        cache, context, _ = _resolve_cache_dispatch(
            self._target(), None, kernel.execution_backend, verbose=False
        )
        return cache, context, normalize_pass_configs(kernel.given_configs)


class AssemblyCompiler:
    """Assembles kernels for the cache of the backend `compile`."""

    def __init__(self, arch: str) -> None:
        from tlmatrix.backend.assembly import Assembler

        self.arch = arch
        self._assembler: Assembler = Assembler()

    def key(self, kernel: TracedKernel) -> str:
        """See `Compiler.key`."""
        return self._assembler.key(kernel, self.arch)

    def known(self, key: str) -> bool:
        """See `Compiler.known`."""
        return self._assembler.known(key)

    def compile(self, kernel: TracedKernel) -> None:
        """See `Compiler.compile`."""
        from tlmatrix.backend.kernel_cache import record_compilation

        begin = time.perf_counter()
        key = self.key(kernel)
        try:
            self._assembler.assemble(kernel, self.arch)
        finally:
            self._assembler.close()
        record_compilation(kernel.name, key, time.perf_counter() - begin)
